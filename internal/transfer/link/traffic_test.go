package link

import (
	"errors"
	"testing"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// TestSent: what all connections have carried counts, and what layers have sent.
func TestSent(t *testing.T) {
	to := newNode(t)
	l, _ := linkTo(t, to, migration.PreCopy, nil)
	if _, err := l.Open(t.Context(), "migration"); err != nil {
		t.Fatal(err)
	}
	if err := l.Send("one", "", []byte("first")); err != nil {
		t.Fatal(err)
	}
	for _, purpose := range []string{"files", "pages"} {
		more, err := l.OpenMore(t.Context(), purpose, 1)
		if err != nil {
			t.Fatal(err)
		}
		out := stream.NewSections(more, nil)
		if err := errors.Join(out.Whole(purpose, "", []byte("beside")), out.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	l.config.Layers = func() (stream.Counters, bool) {
		return stream.Counters{Sent: map[string]stream.Count{"layer": {RawBytes: 7}}}, true
	}
	sent := l.Sent().Sent
	for kind, want := range map[string]uint64{"one": 5, "files": 6, "pages": 6, "layer": 7} {
		if got := sent[kind].RawBytes; got != want {
			t.Errorf("%s: %d bytes, want %d", kind, got, want)
		}
	}
}

// TestBytesPerSecond: what was measured counts until the link was the limit, and beside layers; nobody is
// told of more than the user allows.
func TestBytesPerSecond(t *testing.T) {
	to := newNode(t)
	l, _ := linkTo(t, to, migration.PreCopy, nil)
	if l.BitsPerSecond() != 0 {
		t.Error("something is known of a link that is not open")
	}
	if _, err := l.Open(t.Context(), "migration"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.OpenMore(t.Context(), "files", 1); err != nil {
		t.Fatal(err)
	}
	if l.Seen() != 0 || l.BytesPerSecond() != 0 {
		t.Error("nothing has been the limit, or was measured")
	}
	l.config.Figures.Measured(stream.Link{BandwidthBitsPerSecond: 8e6}, stream.Choice{}, 0)
	if got := l.BytesPerSecond(); got != 1e6 {
		t.Errorf("measured: %g", got)
	}
	if got := l.BitsPerSecond(); got != 8e6 {
		t.Errorf("measured, in bits: %g", got)
	}
	l.config.Settings = fixed{BandwidthLimit: 4e6}
	l.config.Layers = func() (stream.Counters, bool) { return stream.Counters{}, true }
	if got := l.BytesPerSecond(); got != 5e5 {
		t.Errorf("limited: %g", got)
	}
}
