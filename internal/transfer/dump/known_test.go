package dump

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire/stream"
)

// oneLayer is the directory of the only layer.
type oneLayer string

func (d oneLayer) LayerPath(string) (string, error) { return string(d), nil }

// TestDamagedLayerEndsNoMove: what the target cannot make of its layers goes in the freeze.
func TestDamagedLayerEndsNoMove(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), memory.PageSize()/4)
	page := bytes.Clone(content[:memory.PageSize()])
	copy(page, "relocated")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "one.so"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	// the target has no layer
	for answer, file := range map[string]string{state.HeardAll: "/none.so", state.HeardNone: "/one.so"} {
		r := try(t)
		known := state.NewKnown(state.NewLayers(oneLayer(dir), []string{"layer"}))
		known.Add(memory.FilePage{Content: page, File: file})
		var heard string
		r.to.config.Answer = func(kind, name string) error {
			heard = kind + " " + name
			return r.HearKnown(name)
		}
		err := r.known.Send(known, func(content []byte) error { return r.take(KindKnown, "", content) })
		known.Release()
		if err := errors.Join(err, r.AwaitKnown(t.Context())); err != nil || heard != KindHeard+" "+answer ||
			(r.known.Known() != nil) != (answer == state.HeardAll) {
			t.Errorf("%s: %v, heard %q, known: %v", answer, err, heard, r.known.Known() != nil)
		}
	}
}

// TestNothingKnown: a migration goes on without the pages that could go ahead, and in a mode with one freeze
// nobody looks for them.
func TestNothingKnown(t *testing.T) {
	r := try(t)
	r.fails["processes"] = errors.New("the container is not there")
	if err := r.SendKnown(t.Context()); err != nil || len(r.done) > 0 {
		t.Errorf("all is one freeze: %v, done %q", err, r.done)
	}
	r.ahead = true
	if err := r.SendKnown(t.Context()); err != nil || r.known.Known() != nil {
		t.Errorf("it ends with %v, known: %v", err, r.known.Known())
	}
}

// TestReceiverRefuses what is no state, and pages that no source sends.
func TestReceiverRefuses(t *testing.T) {
	r := NewReceiver(ReceiverConfig{Dir: t.TempDir(), Limit: 10, Log: slog.New(slog.DiscardHandler)})
	section := func(kind, name, content string) stream.Section {
		return stream.Section{Kind: kind, Name: name, Reader: bytes.NewReader([]byte(content))}
	}
	if taken, err := r.Take(section("files", "", "")); taken || err != nil {
		t.Errorf("what is not of the state: %t, %v", taken, err)
	}
	for _, one := range []stream.Section{
		section(KindState, "../x@0", ""), section(KindState, "x@0", "more than ten bytes"),
		section(KindRefers, "y@0", "refers to nothing"), section(KindKnown, "", "no pages"),
	} {
		if taken, err := r.Take(one); !taken || err == nil {
			t.Errorf("%s %s: %t, %v", one.Kind, one.Name, taken, err)
		}
	}
	if r.Check(map[string]int64{"z": 1}) == nil {
		t.Error("all is there of which nothing came")
	}
}
