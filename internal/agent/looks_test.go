package agent

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// TestHungLookDelaysNoOther: of what hangs there is one look, and it keeps nothing else from being looked at.
func TestHungLookDelaysNoOther(t *testing.T) {
	var l looks
	var hung, others atomic.Int32
	began, release := make(chan struct{}, 3), make(chan struct{})
	for range 3 {
		l.patience = time.Millisecond
		l.look("hangs", func() {
			hung.Add(1)
			began <- struct{}{}
			<-release
		})
		l.patience = time.Minute
		l.look("works", func() { others.Add(1) })
	}
	<-began
	if hung.Load() != 1 || others.Load() != 3 {
		t.Errorf("%d looks at what hangs, and %d at what works; want 1 and 3", hung.Load(), others.Load())
	}
	close(release)
	l.wait()
	l.look("hangs", func() { hung.Add(1) })
	if hung.Load() != 2 {
		t.Error("what hung is not looked at again")
	}
	l.look("fails", func() { panic("on purpose") })
	l.wait()
}

// TestLookSeesWhatHasHappened: a look that was under way may have missed it.
func TestLookSeesWhatHasHappened(t *testing.T) {
	l := looks{patience: time.Minute}
	began, release := make(chan struct{}), make(chan struct{})
	go l.look("one", func() {
		close(began)
		<-release
	})
	<-began
	again := false
	close(release)
	l.look("one", func() { again = true })
	l.wait()
	if !again {
		t.Error("nobody has looked since")
	}
}

// routing is an engine that tells of its networks when the test lets it.
type routing struct {
	name  string
	tells chan []engine.RoutedNetwork
}

func (r *routing) Name() string { return r.name }

func (r *routing) RoutedNetworks(context.Context) ([]engine.RoutedNetwork, error) {
	if told, more := <-r.tells; more {
		return told, nil
	}
	return nil, errors.New("on purpose")
}

// TestHungEngineDelaysNoNetworks: the networks of engines that answer are routed, whatever another engine
// does. What an engine has told stays when it fails.
func TestHungEngineDelaysNoNetworks(t *testing.T) {
	hangs, works := &routing{"hangs", make(chan []engine.RoutedNetwork)},
		&routing{"works", make(chan []engine.RoutedNetwork, 1)}
	a := newTestAgent(t)
	a.looks.patience = time.Millisecond
	a.networked = []*networkList{{engine: hangs}, {engine: works}}
	routed := engine.RoutedNetwork{Device: "br0", Subnet: netip.MustParsePrefix("10.89.0.0/16")}
	works.tells <- []engine.RoutedNetwork{routed}
	for {
		if known, err := a.routedNetworks(t.Context()); err != nil {
			t.Fatal(err)
		} else if len(known) == 1 && known[0].Subnet == routed.Subnet {
			break
		}
	}
	close(works.tells)
	for failed := false; !failed; {
		known, err := a.routedNetworks(t.Context())
		if failed = err != nil; len(known) != 1 {
			t.Fatalf("%v, %v", known, err)
		}
	}
	close(hangs.tells)
	a.looks.wait()
}
