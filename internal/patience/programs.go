package patience

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// leastShare is the processor share above which a program counts as active, in hundredths. A daemon that
// waits uses less; a daemon that works with a twentieth of a processor uses more.
const leastShare = 1

// Programs watches processes whose names begin with one of these, except this process, which works all the
// time. They are active as long as they use a hundredth of a processor together, or one of their threads
// waits for a processor. It cannot be seen for whom they work: while they are busy for somebody else, only
// the hard bound ends the wait. The first look finds the processes, and counts as a sign: most waits are
// over before it, and do not pay for a look at all processes.
func Programs(names ...string) Signs {
	p := &programs{wants: func(name string) bool {
		return slices.ContainsFunc(names, func(wanted string) bool { return strings.HasPrefix(name, wanted) })
	}}
	return p.moved
}

// Program is Programs for exactly this name: it excludes "containerd-shim" if containerd is asked.
func Program(name string) Signs {
	p := &programs{wants: func(found string) bool { return found == name }}
	return p.moved
}

type programs struct {
	wants func(name string) bool
	known map[string]int64 // processor time of each process, by its PID and start
	at    time.Time        // of the last sign; zero: no look yet
	used  time.Duration    // since at
	ready bool             // a thread wanted a processor at the last look
}

func (p *programs) moved() bool {
	now, first := time.Now(), p.at.IsZero()
	p.used += p.gained()
	if !first && !p.ready && p.used < now.Sub(p.at)*leastShare/100 {
		return false
	}
	p.at, p.used = now, 0
	return true
}

// gained returns the processor time that the processes have used since the last call.
func (p *programs) gained() time.Duration {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	own := fmt.Sprintf("/proc/%d/stat", os.Getpid())
	ticks, known := int64(0), make(map[string]int64, len(p.known))
	p.ready = false
	for _, path := range stats {
		line, err := os.ReadFile(path)
		if err != nil || path == own {
			continue // it has ended, or is this one
		}
		name, rest := splitStat(line)
		if rest == nil || !p.wants(name) {
			continue
		}
		key := path + " " + string(rest[19])
		known[key] = number(rest[11]) + number(rest[12]) // utime, stime: proc(5)
		ticks += max(known[key]-p.known[key], 0)
		p.ready = p.ready || wantsProcessor(filepath.Dir(path))
	}
	p.known = known
	const perSecond = 100 // USER_HZ on every architecture that this program runs on
	return time.Duration(ticks) * time.Second / perSecond
}

// wantsProcessor reports whether a thread of a process runs or is runnable: the machine may be busy, or the
// process may have used up its cgroup's quota.
func wantsProcessor(process string) bool {
	stats, _ := filepath.Glob(process + "/task/*/stat") // the pattern is valid
	for _, path := range stats {
		line, err := os.ReadFile(path)
		if _, rest := splitStat(line); err == nil && rest != nil && string(rest[0]) == "R" {
			return true
		}
	}
	return false
}

// splitStat splits a line of /proc/PID/stat: the name, and the fields from the state on.
func splitStat(line []byte) (name string, rest [][]byte) {
	begin, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if begin < 0 || end < begin {
		return "", nil
	}
	if rest = bytes.Fields(line[end+1:]); len(rest) < 20 {
		return "", nil
	}
	return string(line[begin+1 : end]), rest
}

func number(field []byte) int64 {
	n, _ := strconv.ParseInt(string(field), 10, 64) // the kernel wrote it
	return n
}
