package docker

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// TestCreateIsNotGivenUp wants the id of a container that Docker makes after the migration has been given up.
func TestCreateIsNotGivenUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/containers/create") {
			return // a ping
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"Id":"made"}`)) // the client sees it if it fails
	}))
	server.Listener = listener
	server.Start()
	defer server.Close()
	api, err := client.New(client.WithHost("unix://"+socket), client.WithAPIVersion("1.41"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	options := client.ContainerCreateOptions{Config: &container.Config{Image: "image"}, Name: "given-up"}
	known := &connection{negotiates: api}
	known.knows.Store(true)
	own, err := (&adapter{connection: known}).create(ctx, options)
	if err != nil || own != "made" {
		t.Errorf("made %q, %v", own, err)
	}
}
