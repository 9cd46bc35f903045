package frozen

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// TestPermit: the final marker of a copy that has run leaves never, and nobody is alarmed
// before it leaves.
func TestPermit(t *testing.T) {
	var restarted permit
	if restarted.deny() {
		t.Error("an agent that was started again says that the marker has not left")
	}
	var left permit
	left.withhold()
	if left.given() {
		t.Error("the stream has a marker that was not released")
	}
	if !left.release() || left.deny() || !left.given() {
		t.Error("the marker of a copy that was held: kept here, or nobody is alarmed")
	}
	var ran permit
	ran.withhold()
	if !ran.deny() || ran.release() || !ran.deny() || ran.given() {
		t.Error("the marker of a copy that has run: it left, or somebody is alarmed")
	}
}

// TestCopyThatRan: what has run since it was frozen is not what was frozen.
func TestCopyThatRan(t *testing.T) {
	c := copyOf(t, &testEngine{})
	if err := c.HasRun(); err != nil || c.Alarm() != "" {
		t.Errorf("it has not run: %v, %q", err, c.Alarm())
	}
	c.ran.Store(true)
	if err := c.HasRun(); !errors.Is(err, engine.ErrThawed) || c.Alarm() == "" {
		t.Errorf("it has run: %v, %q", err, c.Alarm())
	}
}

// TestHere: the pages are in the processes, unless these are gone or of another boot. A copy is gone only if
// its engine says so.
func TestHere(t *testing.T) {
	silent := errors.New("it hangs")
	for name, c := range map[string]struct {
		engine   testEngine
		rebooted bool
		here     bool
		gone     bool
		fails    bool // what asks the engine
	}{
		"frozen": {testEngine{pids: []int{os.Getpid()}, inspects: engine.Container{State: engine.Frozen}},
			false, true, false, false},
		"rebooted": {testEngine{pids: []int{os.Getpid()}, inspects: engine.Container{State: engine.Frozen}},
			true, false, false, false},
		"ended":   {testEngine{inspects: engine.Container{State: engine.Exited}}, false, false, true, false},
		"removed": {testEngine{missing: true}, false, false, true, false},
		"silent":  {testEngine{silent: silent}, false, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			one := copyOf(t, &c.engine)
			one.move.rebooted = c.rebooted
			if got := one.Here(t.Context()); got != c.here {
				t.Errorf("here: %t", got)
			}
			gone, err := one.Gone(t.Context())
			if gone != c.gone || (err != nil) != c.fails {
				t.Errorf("gone: %t, %v", gone, err)
			}
			opened, err := one.Memory(t.Context(), false)
			if (err != nil) != c.fails {
				t.Errorf("its memory: %v", err)
			}
			if err == nil {
				_ = opened.Close()
			}
			elsewhere, err := one.Memory(t.Context(), true)
			if err != nil {
				t.Fatalf("memory that is on the disk, too: %v", err)
			}
			_ = elsewhere.Close()
		})
	}
}

// TestKilled: a process that lives was not killed, and of one that was stopped nobody asks.
func TestKilled(t *testing.T) {
	c := copyOf(t, &testEngine{pids: []int{os.Getpid()}})
	if c.Killed(t.Context()) {
		t.Error("this process was killed")
	}
	c.config.Restarts = true
	if c.Killed(t.Context()) {
		t.Error("a container that was stopped was killed")
	}
	if copyOf(t, &testEngine{silent: errors.New("it hangs")}).Killed(t.Context()) {
		t.Error("the engine has not said so")
	}
}

// resumes lets the processes go on by itself.
type resumes struct{ *testEngine }

func (r resumes) Capabilities() engine.Capabilities { return engine.Capabilities{Resumer: r} }

func (resumes) ResumeProcesses(context.Context, string) error { return errByItself }

var errByItself = errors.New("resumed without a program")

// TestResume: processes go on without a program that may hang, if that can be.
func TestResume(t *testing.T) {
	if err := copyOf(t, &testEngine{}).Resume(t.Context()); !errors.Is(err, errResumed) {
		t.Error(err)
	}
	if err := copyOf(t, resumes{&testEngine{}}).Resume(t.Context()); !errors.Is(err, errByItself) {
		t.Error(err)
	}
}

// marks shows that a container has moved, or fails to.
type marks struct {
	*testEngine
	asked *int
	fails *error
}

func (m marks) Capabilities() engine.Capabilities { return engine.Capabilities{Marker: m} }

func (m marks) MarkMoved(context.Context, string) error {
	*m.asked++
	return *m.fails
}

// TestMarking: a copy that waits long is shown as moved, once, and a failure is tried again.
func TestMarking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, fails := 0, errors.New("it hangs")
		c := copyOf(t, marks{&testEngine{}, &asked, &fails})
		c.Marking(t.Context(), time.Second)() // it ends before
		if asked != 0 {
			t.Error("the engine was asked about a copy that is removed at once")
		}
		stop := c.Marking(t.Context(), time.Second)
		time.Sleep(2 * time.Second)
		stop()
		if asked != 1 {
			t.Errorf("the engine was asked %d times", asked)
		}
		fails = nil
		c.MarkMoved(t.Context())
		c.MarkMoved(t.Context())
		if asked != 2 {
			t.Errorf("after a failure: %d times", asked)
		}
		copyOf(t, &testEngine{}).MarkMoved(t.Context()) // an engine without marks
	})
}
