package faults

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/lab"
)

// TestDiskFull fills the disk of a node at the worst moments. A node must still write down its decisions.
func TestDiskFull(t *testing.T) {
	w := newNodes(t, lab.Config{StateSizeBytes: 192 << 20})
	w.startRedis(t)
	w.learnOrder(t)
	full := []string{"no space left", "not enough space"}
	for _, c := range []struct {
		name   string
		point  agent.Fault
		target bool // whose disk
		moved  bool
	}{
		{"target, before the files come", beforeReceive, true, false},
		{"target, before the commit", beforeRestore, true, true}, // in the reserved space
		{"target, when it runs", agent.Fault{Side: "target", Step: "restore", When: "after"}, true, true},
		{"source, before it notes that the container leaves",
			agent.Fault{Side: "source", Step: "prepare", When: "before"}, false, true},
		{"source, before it gives up its word", agent.Fault{Side: "source", Step: "send", When: "before"},
			false, true},
		{"source, before it destroys its copy", agent.Fault{Side: "source", Step: "destroy", When: "before"},
			false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.meet(t)
			w.writeInContainer(t)
			from, to := w.at, other(w.at)
			node := map[bool]string{true: to, false: from}[c.target]
			at := map[string]string{"source": from, "target": to}[c.point.Side]
			w.set(t, at, c.point, agent.FaultPause)
			id := w.begin(t, from, to)
			w.reach(t, at, c.point)
			free := w.fillDisk(t, node)
			w.goOn(t, at, c.point)
			w.settle(t, id)
			free()
			w.end(t, from, id, c.moved, full...)
		})
	}
	t.Run("target, from the beginning", func(t *testing.T) {
		w.meet(t)
		from, to := w.at, other(w.at)
		free := w.fillDisk(t, to)
		w.killAgent(t, to) // which has reserved space
		w.forget(t, to, ".spare")
		topUp(t, w.filler(t, to))
		w.reviveAgents(t)
		w.meet(t)
		id := w.begin(t, from, to)
		w.settle(t, id)
		free()
		w.end(t, from, id, false, full...)
	})
	w.clientIsHappy(t)
}

// writeInContainer gives the container a file that has to move, too.
func (w *world) writeInContainer(t *testing.T) {
	t.Helper()
	w.must(t, w.at, "exec", container, "sh", "-c", "head -c 20000000 /dev/urandom > /tmp/file")
}

func (w *world) filler(t *testing.T, node string) string {
	t.Helper()
	root, err := w.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "var/lib/godwit/filler")
}

// fillDisk fills a node's state directory, until free is called.
func (w *world) fillDisk(t *testing.T, node string) (free func()) {
	t.Helper()
	path := w.filler(t, node)
	topUp(t, path)
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// topUp extends a file until the disk is full.
func topUp(t *testing.T, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for size := 1 << 20; size > 0; {
		if _, err := file.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
