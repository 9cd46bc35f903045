package docker

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestWatch: who watches learns of what begins and ends, of nothing else, and when nothing more can be learned.
func TestWatch(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Socket: socket, Executable: "/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	watch := func() error { return e.Watch(t.Context(), func() { changes++ }) }
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
		for _, one := range []string{"container start", "container create", "container die", "network create", "network destroy", "container destroy"} {
			sort, action, _ := strings.Cut(one, " ")
			fmt.Fprintf(w, `{"Type":%q,"Action":%q}`+"\n", sort, action)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	if err := watch(); err == nil || errors.Is(err, engine.ErrAway) {
		t.Errorf("%v, want that the stream has ended", err)
	}
	if changes != 4 {
		t.Errorf("%d changes, want 4", changes)
	}
}
