package faults

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/migration"
)

// restartFaults lists the faults in mode restart. healthy is while the container runs on probation at the
// target.
func restartFaults() []fault {
	var all []fault
	add := func(side, when string, steps []string, kinds ...kind) {
		for _, step := range steps {
			for _, k := range kinds {
				all = append(all, fault{side, step, when, k})
			}
		}
	}
	add("target", "before", []string{"healthy"}, killTarget, killSource, killBoth, linkBlinks, linkLoses,
		stepFails, userStops, agentEnds)
	add("target", "before", []string{"start"}, turnsSick, killSource, killTarget, killBoth, linkBlinks,
		stepFails, userStops)
	add("source", "after", []string{"stop"}, killSource, killTarget, killBoth, linkBlinks, linkLoses,
		stepFails, userStops, agentEnds)
	add("source", "before", []string{"stop", "send"}, killSource, killTarget, linkBlinks, stepFails,
		userStops)
	add("source", "after", []string{"send"}, killSource, killTarget, killBoth, linkBlinks, stepFails,
		userStops)
	add("target", "before", []string{"receive"}, killSource, killTarget, linkBlinks, stepFails, userStops)
	add("target", "after", []string{"receive", "start"}, killSource, killTarget, killBoth, linkBlinks,
		stepFails)
	add("source", "before", []string{"examine", "stage", "rounds", "prepare", "hold"}, killSource, killTarget,
		linkBlinks, stepFails, userStops)
	add("target", "before", []string{"reserve", "arrive"}, killSource, killTarget, stepFails, userStops)
	add("source", "before", []string{"forward", "destroy", "cleanup"}, killSource, killTarget, linkBlinks,
		stepFails)
	add("target", "before", []string{"settle"}, killSource, killTarget, stepFails)
	add("source", "before", []string{"revive", "unhold", "close", "untrack"}, killSource, stepFails)
	add("target", "before", []string{"discard", "release"}, killTarget, stepFails)
	return all
}

// TestRestartFaults runs the faults of mode restart.
func TestRestartFaults(t *testing.T) { runFaults(t, migration.Restart, restartFaults(), 32) }

// sickness is a file in the container that ends it when it starts.
const sickness = "sick"

// startDurableRedis starts a Redis that answers after writing to disk, and clients that reconnect.
func (w *world) startDurableRedis(t *testing.T) {
	t.Helper()
	w.id = strings.TrimSpace(w.must(t, "a", "run", "-d", "--name", container, "-v", "data:/data", "redis",
		"/bin/sh", "-c",
		`[ -e /`+sickness+
			` ] && exit 3; exec redis-server --bind 0.0.0.0 --protected-mode no --dir /data --appendonly yes --appendfsync always`))
	if err := w.lab.Client("client", "a", lab.Link{}); err != nil {
		t.Fatal(err)
	}
	address := w.find(t, "a", container).Definition.Network.Address.String() + ":6379"
	eventually(t, "redis to answer", func() error {
		conn, err := w.lab.Dial(t.Context(), "client", "tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	dial := func(ctx context.Context) (net.Conn, error) { return w.lab.Dial(ctx, "client", "tcp", address) }
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	t.Cleanup(stop)
	w.again = workload.NewRedisAgain(dial, 5*time.Second)
	w.again.Start(ctx)
}

// clientsGoOn is clientGoesOn for clients that reconnect.
func (w *world) clientsGoOn(t *testing.T) {
	t.Helper()
	until := w.again.Seen().Answers + 10
	eventually(t, "clients to get answers", func() error {
		if have := w.again.Seen().Answers; have < until {
			return fmt.Errorf("%d of %d answers", have, until)
		}
		return nil
	})
	w.lostNothing(t, w.again.Seen())
}

func (w *world) lostNothing(t *testing.T, seen workload.CountedAgain) {
	t.Helper()
	if seen.Lost+seen.Doubled+seen.Refused+seen.Errors > 0 {
		t.Errorf("clients saw %+v", seen)
	}
}

// infect makes the container that a node is about to start end at once.
func (w *world) infect(t *testing.T, node string) {
	t.Helper()
	root, err := w.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "var/lib/godwit/containers", w.id, "upper", sickness)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
