package anew

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

const here, there = "container one here", "node a"

// targetOf is the target of a container at a node; near is the source's end of the connection.
func targetOf(t *testing.T, n *node) (target *Target, near *stream.Session) {
	t.Helper()
	near, far := streamtest.Pair(t)
	return NewTarget(t.Context(), TargetConfig{
		Container: container(), PortsJSON: []byte(`[{"protocol":"tcp","number":80}]`), Source: "a",
		Network: n, Volumes: n, Data: func() *stream.Session { return far }, May: n.may,
		Log: slog.New(slog.DiscardHandler),
	}), near
}

// redirected reports whether the source is told that it may redirect packets.
func redirected(near *stream.Session) <-chan bool {
	told := make(chan bool, 1)
	go func() {
		section, err := near.Next()
		told <- err == nil && section.Kind == KindRedirected
	}()
	return told
}

// TestStart: those who want to connect wait until the container is healthy and may stay.
func TestStart(t *testing.T) {
	n := newNode()
	target, near := targetOf(t, n)
	arrival, err := target.Expect(t.Context(), n, "/netns")
	if err != nil {
		t.Fatal(err)
	}
	told := redirected(near)
	if _, err := target.Start(t.Context(), arrival); err != nil {
		t.Fatal(err)
	}
	n.wants(t, "prepare", `prepare start in "/netns" with 1 ports`, "forget", "hold requests "+here, "start",
		"may", "release "+here)
	if !<-told {
		t.Error("the source does not hear that it may redirect packets")
	}
	if err := errors.Join(target.LetIn(t.Context()), target.RedirectBack(t.Context())); err != nil {
		t.Error(err)
	}
	n.wants(t, "route here") // as an agent does that was started again
}

// TestStartWithoutTheSource: that the source is not told costs no move.
func TestStartWithoutTheSource(t *testing.T) {
	n := newNode()
	target, near := targetOf(t, n)
	arrival, err := target.Expect(t.Context(), n, "")
	if err != nil {
		t.Fatal(err)
	}
	near.Close()
	if _, err := target.Start(t.Context(), arrival); err != nil {
		t.Error(err)
	}
}

// TestStartFails: what the container has written to shared volumes is handed back if it may not stay, also
// when nobody waits for that any more. Clients go to the source.
func TestStartFails(t *testing.T) {
	for fails, want := range map[string][]string{
		"hold requests": {"forget", "hold requests " + here, "release " + there},
		"start":         {"forget", "hold requests " + here, "start", "may", "give back", "release " + there},
		"may":           {"forget", "hold requests " + here, "start", "may", "give back", "release " + there},
	} {
		n := newNode()
		target, near := targetOf(t, n)
		arrival, err := target.Expect(t.Context(), n, "")
		if err != nil {
			t.Fatal(err)
		}
		redirected(near)
		n.did, n.fails[fails] = nil, errTest
		if _, err := target.Start(t.Context(), arrival); !errors.Is(err, errTest) {
			t.Errorf("%s: %v", fails, err)
		}
		if err := target.RedirectBack(t.Context()); err != nil {
			t.Errorf("%s: %v", fails, err)
		}
		n.wants(t, want...)
	}
	n := newNode()
	target, near := targetOf(t, n)
	arrival, err := target.Expect(t.Context(), n, "")
	if err != nil {
		t.Fatal(err)
	}
	redirected(near)
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	n.did, n.fails["give back"] = nil, errTest
	if _, err := target.Start(interrupted, arrival); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	n.wants(t, "forget", "hold requests "+here, "start", "may", "give back")
}

// TestExpectFails: nothing is prepared for a source that lies about ports, or without a hold.
func TestExpectFails(t *testing.T) {
	n := newNode()
	target, _ := targetOf(t, n)
	target.config.PortsJSON = []byte(`[{"protocol":"sctp","number":1}]`)
	if _, err := target.Expect(t.Context(), n, ""); !errors.Is(err, api.ErrInvalid) {
		t.Error(err)
	}
	n.wants(t)
	target.config.PortsJSON = nil
	n.fails["prepare"] = errTest
	if _, err := target.Expect(t.Context(), n, ""); !errors.Is(err, errTest) {
		t.Error(err)
	}
	n.wants(t, "prepare")
	n.fails = map[string]error{"prepare start": errTest}
	if _, err := target.Expect(t.Context(), n, ""); !errors.Is(err, errTest) {
		t.Error(err)
	}
	if err := target.RedirectBack(t.Context()); err != nil {
		t.Error(err)
	}
	n.wants(t, "prepare", `prepare start in "" with 0 ports`, "close")
}

// TestLetInFails: those who wait go on waiting until they can be let in, or sent back.
func TestLetInFails(t *testing.T) {
	n := newNode()
	target, near := targetOf(t, n)
	arrival, err := target.Expect(t.Context(), n, "")
	if err != nil {
		t.Fatal(err)
	}
	redirected(near)
	n.fails["release"] = errTest
	if _, err := target.Start(t.Context(), arrival); !errors.Is(err, errTest) {
		t.Error(err)
	}
	n.did = nil
	if err := target.RedirectBack(t.Context()); !errors.Is(err, errTest) {
		t.Error(err)
	}
	n.fails["release"] = nil
	if err := target.LetIn(t.Context()); err != nil {
		t.Error(err)
	}
	n.wants(t, "release "+there, "release "+here)
}
