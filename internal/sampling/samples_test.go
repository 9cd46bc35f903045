package sampling

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/predict"
)

// fakeNode has containers with known processes.
type fakeNode struct {
	pids        []int
	failed      error // of the engine
	noSockets   error
	moving      atomic.Bool
	staged      bool
	filling     memory.FillState
	asked       atomic.Int32 // how often the engine was asked for processes
	connections int
}

func (n *fakeNode) Engine(engine.Definition) Engine { return n }

func (n *fakeNode) Connections(string) (count int, queuedBytes int64, err error) {
	return n.connections, int64(100 * n.connections), n.noSockets
}

func (n *fakeNode) Moving(string) bool { return n.moving.Load() }
func (n *fakeNode) Staged(string) bool { return n.staged }

func (n *fakeNode) Processes(context.Context, string) ([]int, error) {
	n.asked.Add(1)
	return n.pids, n.failed
}

func (n *fakeNode) Memory(context.Context, string) (memory.FillReport, error) {
	return memory.FillReport{State: n.filling}, nil
}

func (n *fakeNode) CPUTime(context.Context, string) (time.Duration, error) {
	return time.Second, errors.ErrUnsupported
}

var web = engine.Definition{ID: "0123", Name: "web"}

func samplesOf(t *testing.T, node Node) *Samples {
	t.Helper()
	s := New(t.Context(), "a", node, slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	return s
}

// program starts a process that does nothing, as the user of the test, and returns its PID.
func program(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestLook: the size of a container is known without touching its processes, and a question that fails does
// not hide the rest.
func TestLook(t *testing.T) {
	node := &fakeNode{pids: []int{os.Getpid(), program(t)}, connections: 3}
	s := samplesOf(t, node)
	seen, err := s.Look(t.Context(), web)
	if err != nil {
		t.Fatal(err)
	}
	if seen.Name != "web" || seen.ID != "0123" || seen.Node != "a" || seen.At.IsZero() {
		t.Errorf("of which container: %+v", seen)
	}
	if seen.Processes != 2 || seen.Threads < 2 || seen.Mappings == 0 || seen.PrivateBytes == 0 ||
		seen.Descriptors == 0 {
		t.Errorf("what there is: %+v", seen.Container)
	}
	if seen.Connections != 3 || seen.QueuedBytes != 300 {
		t.Errorf("connections: %+v", seen.Container)
	}
	node.noSockets = errors.New("not attached")
	if seen, err := s.Look(t.Context(), web); err != nil || seen.Connections != 0 {
		t.Errorf("without its network: %v, %d connections", err, seen.Connections)
	}
	if len(s.live) != 0 {
		t.Error("it is watched")
	}
}

// TestLookAtWhatHasEnded: a process that has ended meanwhile does not count, and a container without any is
// not running.
func TestLookAtWhatHasEnded(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	node := &fakeNode{pids: []int{ended.Process.Pid, os.Getpid()}}
	s := samplesOf(t, node)
	if seen, err := s.Look(t.Context(), web); err != nil || seen.Processes != 1 {
		t.Errorf("%v, %d processes", err, seen.Processes)
	}
	node.pids = nil
	if _, err := s.Look(t.Context(), web); !errors.Is(err, engine.ErrNotRunning) ||
		!strings.Contains(err.Error(), "web") {
		t.Errorf("without processes: %v", err)
	}
	node.failed = errors.New("the engine hangs")
	if _, err := s.Look(t.Context(), web); !errors.Is(err, node.failed) {
		t.Errorf("with an engine that fails: %v", err)
	}
}

// TestMeasure: a caller waits until a window was watched, and gets the last measurement if it is new
// enough.
func TestMeasure(t *testing.T) {
	node := &fakeNode{pids: []int{program(t)}, staged: true} // by their contents: other ways need more rights
	s := samplesOf(t, node)
	window := time.Duration(predict.Windows()[0] * float64(time.Second))
	measured := s.Measure(t.Context(), web, window, time.Minute)
	if measured.ID != "0123" || measured.Curve.Longest() < window.Seconds() || measured.SampledPages == 0 {
		t.Fatalf("measured: %+v", measured)
	}
	if measured.Tracking != string(memory.Hashing) {
		t.Errorf("tracked by %s while its copy is tracked", measured.Tracking)
	}
	s.Stop("0123")
	asked := node.asked.Load()
	if again := s.Measure(t.Context(), web, window, time.Minute); again.ID != "0123" ||
		node.asked.Load() != asked {
		t.Error("what is known is measured again")
	}
	if known, is := s.Last("0123"); !is || known.ID != "0123" {
		t.Errorf("known afterwards: %t, %+v", is, known)
	}
	if _, is := s.Known("0123", time.Hour, time.Minute); is {
		t.Error("an hour was watched")
	}
}

// TestWhatCannotBeMeasured: no caller waits for a container whose engine fails, that has ended, that is
// being moved, or when the node ends.
func TestWhatCannotBeMeasured(t *testing.T) {
	for _, one := range []struct {
		what string
		node *fakeNode
	}{
		{"an engine that fails", &fakeNode{failed: errors.New("the engine hangs"), filling: memory.Filling}},
		{"a container that has ended", &fakeNode{}},
	} {
		s := samplesOf(t, one.node)
		if got := s.Measure(t.Context(), web, time.Second, time.Minute); len(got.Curve) > 0 {
			t.Errorf("%s: %+v", one.what, got)
		}
		if len(s.live) != 0 {
			t.Errorf("%s is watched on", one.what)
		}
	}
	moving := &fakeNode{pids: []int{os.Getpid()}}
	moving.moving.Store(true)
	s := samplesOf(t, moving)
	s.last["0123"] = predict.Measured{ID: "0123", At: time.Now().Add(-time.Hour)}
	if got := s.Measure(t.Context(), web, time.Second, time.Minute); got.ID != "0123" ||
		moving.asked.Load() > 0 {
		t.Errorf("of a container that is being moved: %+v, and its processes were asked for %d times", got,
			moving.asked.Load())
	}
	moving.moving.Store(false)
	s.Close()
	if s.Watch(web); len(s.live) != 0 {
		t.Error("it is watched after the end")
	}
}

// TestStopEndsTheWatching: after Stop, the caller is alone with the container's processes.
func TestStopEndsTheWatching(t *testing.T) {
	s := samplesOf(t, &fakeNode{pids: []int{program(t)}, staged: true})
	s.Watch(web)
	s.mu.Lock()
	w := s.live["0123"]
	s.mu.Unlock()
	if w == nil {
		t.Fatal("it is not watched")
	}
	s.Stop("0123")
	select {
	case <-w.done:
	default:
		t.Error("it is watched on")
	}
	s.Stop("unknown")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Measure(ctx, web, time.Hour, time.Minute) // returns although nothing was watched for that long
}

// TestLongerWindowsStay: a new cycle begins with short windows, and does not forget the long ones.
func TestLongerWindowsStay(t *testing.T) {
	s := samplesOf(t, &fakeNode{})
	w := &watching{news: make(chan struct{})}
	curve := func(points ...float64) predict.Measured {
		m := predict.Measured{ID: "0123", At: time.Now()}
		for i := 0; i < len(points); i += 2 {
			m.Curve = append(m.Curve, predict.Point{Seconds: points[i], Bytes: points[i+1]})
		}
		return m
	}
	s.last["other"] = predict.Measured{ID: "other", At: time.Now().Add(-2 * keepSamples)}
	s.publish(w, curve(1, 100, 10, 150))
	s.publish(w, curve(1, 200))
	known, _ := s.Last("0123")
	if got := fmt.Sprint(known.Curve); got != fmt.Sprint(curve(1, 200, 10, 200).Curve) {
		t.Errorf("the curve is %s", got)
	}
	if _, is := s.last["other"]; is {
		t.Error("what is too old is kept")
	}
}
