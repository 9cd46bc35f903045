package faults

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
)

// TestRouteOfWhatHasGone: a node that a container has left keeps no route to it if the container is removed
// at its new node before that node has reported it.
func TestRouteOfWhatHasGone(t *testing.T) {
	t.Parallel()
	w := newNodesOf(t, lab.Config{Nodes: 3}, "5s")
	archive, err := labimage.Build(t.Context(), "busybox", filepath.Join(lab.StateDirectory, "images"))
	if err != nil {
		t.Fatal(err)
	}
	w.must(t, "a", "image", "load", archive)
	w.must(t, "a", "run", "-d", "--name", "gone", "localhost/busybox", "sleep", "100000")
	address := w.find(t, "a", "gone").Definition.Network.Address.String()
	w.must(t, "a", "migrate", "--mode", "cold", "gone", "b")
	w.must(t, "b", "migrate", "--mode", "cold", "gone", "c")
	if err := w.lab.LinkDown("b", "c"); err != nil {
		t.Fatal(err)
	}
	w.must(t, "c", "rm", "--force", "gone")
	if err := w.lab.LinkUp("b", "c"); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"a", "b", "c"} {
		eventually(t, "no route to the container on "+node, func() error {
			out, err := w.lab.Exec(t.Context(), node, "ip", "route", "show", address)
			if err == nil && strings.TrimSpace(out) != "" {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	}
}
