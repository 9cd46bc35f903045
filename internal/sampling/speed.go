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

// nowhere is a lane that takes everything.
type nowhere struct{}

func (nowhere) Send([]byte) error { return nil }
func (nowhere) Push() error       { return nil }

// cipherBytesPerSecond is how fast one core encrypts (AES-128-GCM with instructions for it, 3 GB/s)
// and hands over to the kernel.
const cipherBytesPerSecond = 1.5e9

// leastSpeed is that of a slow board. What is measured as less was measured while the machine was busy.
const leastSpeed = 0.2e9

// measureSpeed is how many bytes of memory a second one core of this node gets ready to be sent:
// the best of a few tries, because others use it too. It takes 20 ms.
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
			for at := 0; at < size; at += 8 { // contents that are new to it
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

// Machine is this node's speed, as it was measured and as migrations have shown it.
type Machine struct {
	cores int
	speed func() float64 // of the page pipeline on one core, bytes per second
	past  pastWork
}

// NewMachine is a node with so many cores. Its speed is measured when it is asked for.
func NewMachine(cores int) *Machine {
	return &Machine{cores: cores, speed: sync.OnceValue(measureSpeed)}
}

// Predicted is the node as predictions take it.
func (m *Machine) Predicted() predict.Machine {
	return predict.Machine{
		Cores: m.cores, PageBytesPerSecond: m.speed(), Slowness: m.past.slowness() * crowd(m.cores),
	}
}

// learn takes what the work of a freeze took, in seconds, and what it takes by predict.
func (m *Machine) learn(took, expected float64) { m.past.learn(took, expected*crowd(m.cores)) }

// pastWork is how much longer dumps and restores took than predict says, the last times.
type pastWork struct {
	mu    sync.Mutex
	ratio float64 // logarithm
	known bool
}

// Bounds of what is believed of one migration, and how much it counts.
const (
	leastSlowness, mostSlowness = 0.4, 4.0
	newestCounts                = 0.2
)

func (p *pastWork) slowness() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return math.Exp(p.ratio)
}

// learn takes what the freeze's work took, in seconds, and what it takes by predict.
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

// mostCrowd bounds how much longer work is expected to take because others want the processor.
const mostCrowd = 3.0

// crowd is about how much longer short work takes because others want the processor, too. They
// share it, but who has slept comes first, so it is less than how many there are for each core: its
// root. What that is wrong by is learned.
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
