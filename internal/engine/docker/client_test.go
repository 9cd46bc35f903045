package docker

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// TestHungDockerHoldsNobody checks that calls to a Docker that accepts connections and answers nothing end
// in time, although another call waits for events without a limit.
func TestHungDockerHoldsNobody(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	asked := make(chan struct{}, 100)
	go func() {
		for {
			if _, err := listener.Accept(); err != nil {
				return
			}
			asked <- struct{}{}
		}
	}()
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer e.docker.close()
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- e.Watch(ctx, func() {}, func() {}) }()
	<-asked // it waits for an answer
	for range 3 {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		if _, err := e.docker.List(short, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v from a Docker that does not answer", err)
		}
		cancel()
	}
	cancel()
	<-watched
}
