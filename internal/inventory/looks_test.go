package inventory

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// TestHungLookDelaysNoOther: of what hangs there is one look, and it keeps nothing else from being looked at.
func TestHungLookDelaysNoOther(t *testing.T) {
	var l Looks
	var hung, others atomic.Int32
	began, release := make(chan struct{}, 3), make(chan struct{})
	for range 3 {
		l.patience = time.Millisecond
		l.Look("hangs", func() {
			hung.Add(1)
			began <- struct{}{}
			<-release
		})
		l.patience = time.Minute
		l.Look("works", func() { others.Add(1) })
	}
	<-began
	if hung.Load() != 1 || others.Load() != 3 {
		t.Errorf("%d looks at what hangs, and %d at what works; want 1 and 3", hung.Load(), others.Load())
	}
	close(release)
	l.Wait()
	l.Look("hangs", func() { hung.Add(1) })
	if hung.Load() != 2 {
		t.Error("what hung is not looked at again")
	}
	l.Look("fails", func() { panic("on purpose") })
	l.Wait()
}

// TestLookSeesWhatHasHappened: a look that was under way may have missed it.
func TestLookSeesWhatHasHappened(t *testing.T) {
	l := Looks{patience: time.Minute}
	began, release := make(chan struct{}), make(chan struct{})
	go l.Look("one", func() {
		close(began)
		<-release
	})
	<-began
	again := false
	close(release)
	l.Look("one", func() { again = true })
	l.Wait()
	if !again {
		t.Error("nobody has looked since")
	}
}

// TestTold: a lasting error is told once, and again when it comes back.
func TestTold(t *testing.T) {
	told, down, full := Told{}, errors.New("down"), errors.New("full")
	for i, c := range []struct {
		what string
		err  error
		news bool
	}{
		{"a", nil, false}, {"a", down, true}, {"a", down, false}, {"b", down, true}, {"a", full, true},
		{"a", nil, false}, {"a", full, true},
	} {
		if news := told.News(c.what, c.err); news != c.news {
			t.Errorf("%d: %s %v is news: %t", i, c.what, c.err, news)
		}
	}
}
