package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"google.golang.org/grpc"
)

// pods is a containerd with containers of Kubernetes.
type pods struct {
	containers.ContainersClient
	has  int
	mute error
}

func (p *pods) List(context.Context, *containers.ListContainersRequest,
	...grpc.CallOption) (*containers.ListContainersResponse, error) {
	return &containers.ListContainersResponse{Containers: make([]*containers.Container, p.has)}, p.mute
}

// TestCheckFirst checks that Kubernetes' pods are still connected by the same list as before.
func TestCheckFirst(t *testing.T) {
	here := t.TempDir() // as its socket, it exists
	for _, c := range []struct {
		there   string
		pods    pods
		socket  string
		refused bool
	}{
		{"", pods{has: 1}, here, false}, {"05-first.conflist", pods{has: 1}, here, false},
		{"10-kindnet.conflist", pods{}, here, false},
		{"10-kindnet.conflist", pods{has: 1}, here, true},
		{"10-kindnet.conflist", pods{mute: errors.New("mute")}, here, true},
		{"10-kindnet.conflist", pods{has: 1}, filepath.Join(here, "none"), false},
		{"10-kindnet.txt", pods{has: 1}, here, false},
	} {
		dir := t.TempDir()
		if c.there != "" {
			if err := os.WriteFile(filepath.Join(dir, c.there), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a := &adapter{socket: c.socket, containers: &c.pods}
		if err := a.checkFirst(t.Context(),
			filepath.Join(dir, routedPrefix+"birds.conflist")); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.there, err)
		}
	}
}

// TestRemoveTurn checks that host-local's records of a network are removed with the network, unless a
// container has an address of it.
func TestRemoveTurn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "birds")
	if err := removeTurn(dir); err != nil {
		t.Error("there is none:", err)
	}
	for _, last := range []string{"10.4.0.2", "lock"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"last_reserved_ip.0", last} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := removeTurn(dir); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); (err == nil) != (last != "lock") {
			t.Errorf("with %s: %v", last, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}
