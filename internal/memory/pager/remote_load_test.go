package pager

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// TestRemoteStorm lets hundreds of processes wait for the same pages while more processes are forked, and
// the memory is changed in every other way.
func TestRemoteStorm(t *testing.T) {
	t.Setenv("GOMAXPROCS", "64") // each thread that waits for a page keeps a processor of the runtime
	w, v := remoteVictim(t, 2, "-children", "300", "-threads", "40", "-pause", "400ms", "-chaos", "-deeds",
		"fork,move,give,unmap,protect")
	t.Cleanup(func() { // the children have the victim's standard output
		g, err := cgroup.Open(w.config.Cgroup)
		must(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		must(t, g.Kill(ctx))
	})
	s := newSource(t, w.config.Remote)
	answered := make(chan error, 1)
	go func() { answered <- s.answer(t.Context()) }()
	began := time.Now()
	for len(s.order) > 0 && time.Since(began) < 3*time.Second {
		must(t, s.push(1))
		time.Sleep(2 * time.Millisecond) // as on a slow link
	}
	must(t, s.push(1<<30))
	if err := <-answered; !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	r := w.wellFilled(v)
	t.Logf("%+v", r)
	if r.Forks < 300 || r.FetchedPages < 300 {
		t.Errorf("this was no storm: %+v", r)
	}
}
