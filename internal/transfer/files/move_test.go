package files

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/migration"
)

// someBytes cannot be compressed.
func someBytes(n int) []byte {
	content := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	return content
}

// TestMove: what changes while the container runs comes in rounds, and the rest in the freeze.
func TestMove(t *testing.T) {
	m := newMove(t)
	m.write("layer/a", []byte("one"))
	m.write("data/b", []byte("two"))
	check(t, m.round())
	m.wants("writable-/a", "one")
	m.wants("volume-data/b", "two")
	m.write("layer/a", []byte("another"))
	check(t, m.round())
	m.wants("writable-/a", "another")
	m.write("data/c", []byte("in the freeze"))
	check(t, m.freeze())
	m.wants("volume-data/c", "in the freeze")
	report := m.tracker.Report(migration.Record{Spec: m.tracker.Spec}, false)
	if len(report.FileRounds) != 4 || !report.FileRounds[2].Final || !report.FileRounds[3].Final {
		t.Errorf("rounds: %+v", report.FileRounds)
	}
	m.sender.Close()
	m.sender.Close()
	<-m.attached
	if usable, err := m.receiver.Halt(nil); !usable || err != nil {
		t.Errorf("usable: %t, %v", usable, err)
	}
	select {
	case err := <-m.lost:
		t.Errorf("a connection that was closed here is lost: %v", err)
	default:
	}
}

// TestCut cuts the connection everywhere. The source hears of it, and nothing stays at the target; but what
// has come can be used again.
func TestCut(t *testing.T) {
	try := func(left int64) (*move, error) {
		m := newMove(t)
		m.write("layer/a", someBytes(100<<10))
		m.write("data/b", someBytes(10<<10))
		m.left.Store(left)
		return m, m.round()
	}
	m, err := try(farAway)
	check(t, err)
	all := farAway - m.left.Load()
	const cuts = 24
	for n := range int64(cuts) {
		m, err := try(all * n / cuts)
		if err == nil {
			t.Fatalf("cut at %d of %d: the round is in place", all*n/cuts, all)
		}
		if m.sender.data != nil {
			<-m.lost
			if err := m.sender.Round(t.Context()); err == nil {
				t.Error("a round over a connection that is cut")
			}
		}
		<-m.attached
		if usable, err := m.receiver.Halt(errInterrupted); !usable || err != nil {
			t.Errorf("cut at %d of %d: usable: %t, %v", all*n/cuts, all, usable, err)
		}
		check(t, m.receiver.Undo())
		m.wantsNothing()
	}
}

// TestGoOn: what an attempt has left need not be sent again, and is gone when the container has moved.
func TestGoOn(t *testing.T) {
	const size = 6 << 20 // less is not worth keeping
	first := newMove(t)
	first.write("data/large", someBytes(size))
	first.write("layer/small", []byte("small"))
	check(t, first.round())
	usable, err := first.receiver.Halt(errInterrupted)
	if !usable || err != nil {
		t.Fatalf("usable: %t, %v", usable, err)
	}
	if err := <-first.lost; !strings.Contains(err.Error(), errInterrupted.Error()) {
		t.Errorf("the source hears: %v", err)
	}
	first.receiver.Keep(t.Context())
	check(t, first.receiver.Undo())
	first.receiver.End(false)
	first.wantsNothing()

	second := again(t, first.from, first.copies)
	second.keptHere = true
	if bytes := second.receiver.UseKept(); bytes < size {
		t.Fatalf("%d bytes were kept", bytes)
	}
	second.write("layer/small", []byte("changed"))
	check(t, second.sender.Cold(t.Context()))
	if stats := second.sender.history[0]; stats.KeptBytes < size || stats.SentBytes > size/10 {
		t.Errorf("%+v", stats)
	}
	check(t, second.freeze())
	second.wants("writable-/small", "changed")
	second.wants("volume-data/large", string(someBytes(size)))
	second.receiver.End(true)
	if list := second.copies.List(); len(list) > 0 {
		t.Errorf("kept of a container that is here: %+v", list)
	}
}

// TestKeepNothing: an attempt that has brought little, or whose engine does not say what there is, leaves
// nothing.
func TestKeepNothing(t *testing.T) {
	for what, noSalvage := range map[string]error{"little": nil, "unknown": errTest} {
		m := newMove(t)
		m.noSalvage = noSalvage
		m.write("layer/small", []byte("small"))
		check(t, m.round())
		_, err := m.receiver.Halt(errInterrupted)
		check(t, err)
		m.receiver.Keep(t.Context())
		check(t, m.receiver.Undo())
		if list := m.copies.List(); len(list) > 0 {
			t.Errorf("%s: %+v", what, list)
		}
		m.wantsNothing()
	}
}

// TestKeptIsOfNoUse: if what was kept cannot be used, all is sent again.
func TestKeptIsOfNoUse(t *testing.T) {
	first := newMove(t)
	first.write("data/large", someBytes(6<<20))
	check(t, first.round())
	_, err := first.receiver.Halt(errInterrupted)
	check(t, err)
	first.receiver.Keep(t.Context())
	check(t, first.receiver.Undo())

	second := again(t, first.from, first.copies)
	second.keptHere = true
	if second.receiver.UseKept() == 0 {
		t.Fatal("nothing was kept")
	}
	check(t, os.RemoveAll(second.from+"/data")) // the volume is not in the container any more
	second.refuses = trees()["data"].Kind
	check(t, os.MkdirAll(second.from+"/data", 0o755))
	second.write("layer/small", []byte("small"))
	if err := second.sender.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	second.refuses = ""
	check(t, second.sender.Round(t.Context()))
	second.wants("writable-/small", "small")
	if stats := second.sender.history[0]; stats.KeptBytes > 0 {
		t.Errorf("%+v", stats)
	}
	if list := second.copies.List(); len(list) > 0 {
		t.Errorf("it is kept: %+v", list)
	}
}

// TestSpoiled: what has come is not kept for another attempt if the target itself could not take it.
func TestSpoiled(t *testing.T) {
	m := newMove(t)
	m.write("data/b", bytes.Repeat([]byte("b"), 1000))
	m.refuses = trees()["data"].Kind
	if err := m.round(); err == nil {
		t.Error("a round is in place that has no place")
	}
	if err := <-m.lost; !strings.Contains(err.Error(), errTest.Error()) {
		t.Errorf("the source hears: %v", err)
	}
	if usable, err := m.receiver.Halt(errInterrupted); usable || err != nil {
		t.Errorf("usable: %t, %v", usable, err)
	}
	check(t, m.receiver.Undo())
	m.receiver.End(false)
}
