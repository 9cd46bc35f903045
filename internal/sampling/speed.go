package sampling

import (
	"context"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/predict"
)

// nowhere is a lane that discards everything.
type nowhere struct{}

func (nowhere) Send([]byte) error { return nil }
func (nowhere) Push() error       { return nil }

// cipherBytesPerSecond is how fast one core encrypts (AES-128-GCM with instructions for it, 3 GB/s)
// and hands over to the kernel.
const cipherBytesPerSecond = 1.5e9

// leastSpeed is the speed of a slow board. A lower result means that the machine was busy.
const leastSpeed = 0.2e9

// measureSpeed returns how many bytes of memory a second one core of this node prepares for sending: the
// best of a few tries, because other work uses the core too. It takes 20 ms.
func measureSpeed() float64 {
	const tries, runs = 3, 8
	best := time.Duration(math.MaxInt64)
	size := memory.MaxRunPages * memory.PageSize()
	for range tries {
		key, err := pipeline.NewKey()
		if err != nil {
			return 0
		}
		sender, err := pipeline.NewSender(pipeline.SenderConfig{Key: key})
		if err != nil || sender.AddLane(nowhere{}) != nil {
			return 0
		}
		data := make([]byte, size)
		began := time.Now()
		for run := range runs {
			for at := 0; at < size; at += 8 { // contents that are new to the pipeline
				data[at], data[at+1], data[at+2] = byte(run+1), byte(at>>12), byte(at>>20)
			}
			put := memory.Run{Task: 1, Address: uint64(run * size), Pages: memory.MaxRunPages}
			if sender.Put(put, data) != nil {
				return 0
			}
		}
		_, err = sender.Barrier(context.Background())
		best = min(best, time.Since(began))
		sender.Fail(pipeline.ErrClosed)
		if err != nil {
			return 0
		}
	}
	rate := float64(runs*size) / best.Seconds()
	return 1 / (1/max(rate, leastSpeed) + 1/cipherBytesPerSecond)
}

// Machine is this node's speed, as measured and as migrations have shown it.
type Machine struct {
	cores int
	speed func() float64 // of the page pipeline on one core, bytes per second
	past  pastWork
}

// NewMachine returns a node with so many cores. Its speed is measured on demand.
func NewMachine(cores int) *Machine {
	return &Machine{cores: cores, speed: sync.OnceValue(measureSpeed)}
}

// Predicted returns the node as predictions use it.
func (m *Machine) Predicted() predict.Machine {
	return predict.Machine{
		Cores: m.cores, PageBytesPerSecond: m.speed(), Slowness: m.past.slowness() * crowd(m.cores),
	}
}

// learn takes the real and the predicted time of the work in a freeze, in seconds.
func (m *Machine) learn(took, expected float64) { m.past.learn(took, expected*crowd(m.cores)) }

// pastWork is how much longer dumps and restores took than predicted, in recent migrations.
type pastWork struct {
	mu    sync.Mutex
	ratio float64 // logarithm
	known bool
}

// Bounds of one migration's result, and its weight.
const (
	leastSlowness, mostSlowness = 0.4, 4.0
	newestCounts                = 0.2
)

func (p *pastWork) slowness() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return math.Exp(p.ratio)
}

// learn takes the real and the predicted time of the work in a freeze, in seconds.
func (p *pastWork) learn(took, expected float64) {
	if took <= 0 || expected <= 0 {
		return
	}
	ratio := math.Log(min(max(took/expected, leastSlowness), mostSlowness))
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known {
		p.known, p.ratio = true, ratio
		return
	}
	p.ratio += newestCounts * (ratio - p.ratio)
}

// mostCrowd bounds how much longer work is expected to take because of other work on the processor.
const mostCrowd = 3.0

// crowd estimates how much longer short work takes because other work uses the processor. Runnable threads
// share it, but a thread that has slept comes first, so the factor is less than their number for each core:
// its root. The error is learnt.
func crowd(cores int) float64 {
	table, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1
	}
	first, _, _ := strings.Cut(string(table), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil || cores <= 0 {
		return 1
	}
	return min(max(1, math.Sqrt(load/float64(cores))), mostCrowd)
}
