package link

import (
	"bytes"
	"errors"
	"maps"
	"testing"

	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// sendMarker sends a final marker over a pipe, and returns what the target says of it.
func sendMarker(t *testing.T, end func(*Link) error, check func(Marker) error) error {
	t.Helper()
	near, far := streamtest.Pair(t)
	source := &Link{data: near, out: stream.NewSections(near, nil)}
	target := &Target{data: far}
	sent := make(chan error, 1)
	go func() { sent <- end(source) }()
	section, err := far.Next()
	if err == nil && section.Kind != KindFinal {
		t.Errorf("a section %q comes", section.Kind)
	}
	if err == nil {
		err = target.Final(section, check)
	}
	return errors.Join(err, <-sent)
}

// TestFinal: with the final marker the target knows how much was sent, and that nothing more comes.
func TestFinal(t *testing.T) {
	wanted := Marker{State: map[string]int64{"core-1.img": 7}}
	same := func(marker Marker) error {
		if !maps.Equal(marker.State, wanted.State) {
			return errors.New("another marker")
		}
		return nil
	}
	if err := sendMarker(t, func(l *Link) error { return l.Final(wanted) }, same); err != nil {
		t.Error(err)
	}
	lacks := errors.New("it lacks something")
	if err := sendMarker(t, func(l *Link) error { return l.Final(wanted) },
		func(Marker) error { return lacks }); !errors.Is(err, lacks) {
		t.Errorf("what is not here: %v", err)
	}
	more := func(l *Link) error {
		return errors.Join(l.Section(KindFinal, "", []byte("{}")), l.Send("more", "", nil))
	}
	if err := sendMarker(t, more, func(Marker) error { return nil }); !errors.Is(err, errMoreComes) {
		t.Errorf("more comes after the marker: %v", err)
	}
}

// FuzzMarker: the final marker of another node is refused, or compared with what has come.
func FuzzMarker(f *testing.F) {
	f.Add([]byte(`{"state":{"core-1.img":1}}`))
	f.Add([]byte(`{"state":{"":-1}}`))
	f.Add([]byte(`{"state":null}x`))
	f.Fuzz(func(t *testing.T, content []byte) {
		marker, err := readMarker(bytes.NewReader(content))
		if err != nil {
			return
		}
		images := state.NewReceiver(t.TempDir(), 1)
		if err := images.Check(marker.State); (err == nil) != (len(marker.State) == 0) {
			t.Errorf("nothing has come, and the marker says %v: %v", marker.State, err)
		}
	})
}
