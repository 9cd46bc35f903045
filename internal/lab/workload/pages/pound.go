package pages

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

// Pounded is a line that the workload prints every tenth of a second when it writes at full speed.
type Pounded struct {
	At     time.Time     `json:"at"`
	Writes uint64        `json:"writes"` // since the previous line
	Waited time.Duration `json:"waited"` // since then, because other threads had its processor
}

const (
	poundFor  = 100 * time.Millisecond
	poundOnce = 1 << 16 // writes between two readings of the clock, half a millisecond
)

// pound writes words at random places.
func pound(memory []byte, out io.Writer, end <-chan os.Signal) error {
	for at := 0; at < len(memory); at += word {
		binary.LittleEndian.PutUint64(memory[at:], mix(uint64(at)))
	}
	runtime.LockOSThread() // its waiting is reported
	defer runtime.UnlockOSThread()
	fmt.Fprintln(out, Ready)
	told := json.NewEncoder(out)
	mask, chance := uint64(len(memory)-1)&^(word-1), uint64(golden)
	soFar, err := waited()
	if err != nil {
		return err
	}
	for last, writes := time.Now(), uint64(0); ; {
		for range poundOnce {
			// xorshift64 (Marsaglia 2003): little computation, so that the time goes to memory.
			chance ^= chance << 13
			chance ^= chance >> 7
			chance ^= chance << 17
			at := chance & mask
			binary.LittleEndian.PutUint64(memory[at:at+word], chance)
		}
		writes += poundOnce
		if now := time.Now(); now.Sub(last) >= poundFor {
			before := soFar
			if soFar, err = waited(); err != nil {
				return err
			}
			if err := told.Encode(Pounded{At: now, Writes: writes, Waited: soFar - before}); err != nil {
				return err
			}
			last, writes = now, 0
		}
		select {
		case <-end:
			return nil
		default:
		}
	}
}

// waited returns how long this thread has waited for a processor since its beginning
// (Documentation/scheduler/sched-stats.rst).
func waited() (time.Duration, error) {
	text, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		return 0, fmt.Errorf("%s: %w", Command, err)
	}
	var ran, waited int64
	if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
		return 0, fmt.Errorf("%s: schedstat: %w", Command, err)
	}
	return time.Duration(waited), nil
}
