package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// TestWatch checks that Watch reports beginnings and ends, nothing else, and returns when no more events
// can come.
func TestWatch(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Socket: socket, Executable: "/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	changes, began := 0, 0
	watch := func() error { return e.Watch(t.Context(), func() { began++ }, func() { changes++ }) }
	if err := watch(); !errors.Is(err, engine.ErrAway) {
		t.Errorf("%v, want that Docker is not there", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/events") {
			fmt.Fprint(w, "{}")
			return
		}
		for _, one := range []string{"container start", "container create", "container die", "network create",
			"network destroy", "container destroy"} {
			sort, action, _ := strings.Cut(one, " ")
			fmt.Fprintf(w, `{"Type":%q,"Action":%q}`+"\n", sort, action)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	if err := watch(); err == nil || errors.Is(err, engine.ErrAway) {
		t.Errorf("%v, want that the stream has ended", err)
	}
	if changes != 5 || began != 1 {
		t.Errorf("%d changes, want 5; watching began %d times, want 1", changes, began)
	}
}

// TestRestarts checks that Docker would have restarted a container that ended by itself, and not a
// container that somebody has stopped.
func TestRestarts(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	a, err := newAdapter(socket)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var events atomic.Value
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if query := r.URL.Query(); strings.HasSuffix(r.URL.Path, "/events") &&
			(query.Get("since") == "" || query.Get("until") == "") {
			w.WriteHeader(http.StatusBadRequest) // the request would never end
			return
		}
		fmt.Fprint(w, events.Load())
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	const kill = `{"Type":"container","Action":"kill"}`
	for _, c := range []struct {
		policy, events string
		code           int
		want           bool
	}{
		{"always", "", 0, true}, {"always", kill, 137, false}, {"unless-stopped", "", 0, true},
		{"on-failure", "", 1, true}, {"on-failure", "", 0, false},
		{"no", "", 1, false}, {"", "", 1, false},
	} {
		events.Store(c.events)
		found := oci.Container{ID: "1",
			Native: container.InspectResponse{State: &container.State{ExitCode: c.code}}}
		got, err := a.Restarts(t.Context(), found, json.RawMessage(`{"Name":"`+c.policy+`"}`),
			time.Now().Add(-time.Minute))
		if err != nil || got != c.want {
			t.Errorf("%+v: %t, %v", c, got, err)
		}
	}
	if _, err := a.Restarts(t.Context(), oci.Container{}, json.RawMessage(`7`), time.Now()); err == nil {
		t.Error("what is no policy is one")
	}
}
