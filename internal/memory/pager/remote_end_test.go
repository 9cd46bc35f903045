package pager

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// remoteVictim starts a workload with mostly remote pages.
func remoteVictim(t testing.TB, megabytes int, arguments ...string) (*world, *victim) {
	t.Helper()
	w := newRemoteWorld(t)
	w.start()
	must(t, w.pager.Serve(t.Context(), remoteImage(t, 1, megabytes)))
	v := w.victim(append([]string{"-mb", fmt.Sprint(megabytes)}, arguments...)...)
	await.True(t, "the workload", func() bool { return v.count("ready") > 0 || v.count("BAD") > 0 })
	v.say("")
	await.True(t, "the end of the list", func() bool { return v.count("resumed") > 0 })
	must(t, w.pager.Resumed())
	return w, v
}

// TestRemoteLost gives pages up: accesses to them fail from then on, even in children, and accesses to
// others do not.
func TestRemoteLost(t *testing.T) {
	must(t, kernel.ProbePoison())
	w, v := remoteVictim(t, 16, "-lost")
	s := newSource(t, w.config.Remote)
	must(t, s.push(200))
	want, err := s.remote.Next(t.Context())
	must(t, err)
	must(t, s.put(memory.Run{Task: want.Task, Address: want.Address, Pages: 1}))
	lost := w.report().RemotePages - int64(len(s.sent))
	must(t, s.remote.GiveUp(t.Context(), true))
	if err := s.answer(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("Next after it: %v", err)
	}
	if r := w.over(); r.State != memory.Filled || r.LostPages != lost || r.LeftPages != 0 ||
		r.RemoteLeft != 0 {
		t.Errorf("at the end, when %d pages are lost: %+v", lost, r)
	}
	w.nothingLeft()
	rounds := v.count("lost")
	await.True(t, "looks at it", func() bool { return v.count("lost") > rounds+1 || v.count("BAD") > 0 })
	v.good()
	if n := v.count(fmt.Sprintf("lost %d", lost)); n < 2 {
		t.Errorf("the workload does not miss %d pages: %v", lost, v.lines)
	}
}

// TestRemoteKilled gives pages up and kills the container.
func TestRemoteKilled(t *testing.T) {
	w, v := remoteVictim(t, 16, "-chaos")
	s := newSource(t, w.config.Remote)
	must(t, s.push(100))
	must(t, s.remote.GiveUp(t.Context(), false))
	v.died()
	v.good()
	if r := w.over(); r.State != memory.FillLost || !strings.Contains(r.Error, "given up") ||
		r.RemoteLeft == 0 {
		t.Errorf("report: %+v", r)
	}
	w.nothingLeft()
	if _, err := DialRemote(t.Context(), w.config.Remote); !errors.Is(err, ErrNoPager) {
		t.Errorf("DialRemote after it: %v", err)
	}
}

// TestRemoteLies sends pages that were never requested: that ends the connection, and another one
// continues.
func TestRemoteLies(t *testing.T) {
	w, v := remoteVictim(t, 16)
	page := uint64(arenaBase + arenaSpacing)
	for name, run := range map[string]memory.Run{
		"of another process": {Task: 2, Address: page + 4096, Pages: 1},
		"that was here":      {Task: 1, Address: page + 8*4096, Pages: 1},
		"that is zero":       {Task: 1, Address: page + 4*4096, Pages: 2, Zero: true},
		"nowhere":            {Task: 1, Address: page + arenaSpacing/2, Pages: 1},
	} {
		s := newSource(t, w.config.Remote)
		var data []byte
		if !run.Zero {
			data = remotePage(page)
		}
		err := s.remote.Put(run, data)
		for err == nil {
			_, err = s.remote.Next(t.Context())
		}
		bad := run.Address + uint64(run.Pages-1)*4096
		if text := err.Error(); !strings.Contains(text, fmt.Sprintf("%#x of process %d", bad, run.Task)) {
			t.Errorf("a page %s: %v", name, err)
		}
		must(t, s.remote.Close())
		if err := s.remote.Put(run, data); err == nil {
			t.Error("Put after Close succeeds")
		}
	}
	s := newSource(t, w.config.Remote)
	must(t, s.push(100))
	for address := range s.sent { // repeated pages, which are ignored
		must(t, s.remote.Put(memory.Run{Task: 1, Address: address, Pages: 1}, make([]byte, 4096)))
	}
	must(t, s.push(1<<30))
	if err := s.answer(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	w.wellFilled(v)
}

// wellFilled checks that the memory becomes complete, and is right.
func (w *world) wellFilled(v *victim) memory.FillReport {
	w.t.Helper()
	r := w.over()
	if r.State != memory.Filled || r.LeftPages != 0 || r.RemoteLeft != 0 || r.LostPages != 0 {
		w.t.Errorf("at the end: %+v", r)
	}
	w.nothingLeft()
	rounds := v.count("round")
	await.True(w.t, "checks after it",
		func() bool { return v.count("round") > rounds+1 || v.count("BAD") > 0 })
	v.good()
	return r
}

// TestRemoteEnds kills a workload that waits for pages: then they are no longer needed.
func TestRemoteEnds(t *testing.T) {
	w, v := remoteVictim(t, 16)
	s := newSource(t, w.config.Remote)
	_, err := s.remote.Next(t.Context())
	must(t, err)
	await.True(t, "all that is here to be filled",
		func() bool { r := w.report(); return r.LeftPages == r.RemoteLeft })
	must(t, v.cmd.Process.Kill())
	v.died()
	_ = v.cmd.Wait()
	for err == nil {
		_, err = s.remote.Next(t.Context())
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("Next: %v", err)
	}
	if r := w.over(); r.State != memory.FillEnded || r.RemoteLeft != 0 {
		t.Errorf("at the end: %+v", r)
	}
	w.nothingLeft()
}

// TestRemoteZeros sends zero pages: they take no memory, not even that of the image.
func TestRemoteZeros(t *testing.T) {
	store, err := memory.NewStore(1 << 30)
	must(t, err)
	area := memory.Area{Start: arenaBase + arenaSpacing, Pages: 64 << 20 / 4096 / arenas}
	must(t, store.Remote([]memory.TaskMap{{Task: 1, Areas: []memory.Area{area}}}))
	image, err := store.Seal()
	must(t, err)
	pages, err := unix.Dup(int(image.Pages.Fd()))
	must(t, err)
	file := os.NewFile(uintptr(pages), "pages")
	defer file.Close()
	w := newRemoteWorld(t)
	w.start()
	must(t, w.pager.Serve(t.Context(), image))
	// the workload must find wrong pages: this shows that it can
	v := w.victim("-mb", "64", "-lost")
	await.True(t, "the workload", func() bool { return v.count("ready") > 0 })
	v.say("")
	remote, err := DialRemote(t.Context(), w.config.Remote)
	must(t, err)
	defer remote.Close()
	must(t, remote.Put(memory.Run{Task: 1, Address: area.Start, Pages: uint32(area.Pages), Zero: true}, nil))
	if r := w.over(); r.State != memory.Filled || r.LostPages != 0 {
		t.Errorf("at the end: %+v", r)
	}
	if size := blocks(t, file); size != 0 {
		t.Errorf("zeros take %d bytes", size)
	}
	await.True(t, "a look at it", func() bool { return v.count("lost 0") > 0 })
}
