package records

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// stream returns a stream with this payload.
func stream(t *testing.T, payload []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := NewBlockWriter(&out, nil)
	if err == nil {
		_, err = w.Write(payload)
	}
	if err == nil {
		err = w.Finish()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// read returns the payload of a stream, which must end after the given number of bytes.
func read(in io.Reader, length int) ([]byte, error) {
	r, err := NewBlockReader(in)
	if err != nil {
		return nil, err
	}
	defer r.Settle()
	var got []byte
	for len(got) < length {
		piece, err := r.next(int64(length - len(got)))
		if err != nil {
			return got, err
		}
		got = append(got, piece...)
	}
	return got, r.End()
}

func TestBlocksComeOutAsTheyWentIn(t *testing.T) {
	for _, length := range []int{0, 1, firstBlock, maxBlock, 3*maxBlock + 7} {
		payload := bytes.Repeat([]byte("payload "), length/8+1)[:length]
		in := bytes.NewReader(append(stream(t, payload), "behind"...))
		got, err := read(in, length)
		if err != nil || !bytes.Equal(got, payload) {
			t.Errorf("%d bytes: got %d, %v", length, len(got), err)
		}
		if in.Len() != len("behind") {
			t.Errorf("%d bytes: %d are left behind the stream", length, in.Len())
		}
	}
}

func TestStreamsThatAreNotWhole(t *testing.T) {
	payload := bytes.Repeat([]byte("x"), 1000)
	good := stream(t, payload)
	for n := range len(good) {
		if _, err := read(bytes.NewReader(good[:n]), len(payload)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
		bad := bytes.Clone(good)
		bad[n] ^= 1
		if _, err := read(bytes.NewReader(bad), len(payload)); err == nil {
			t.Fatalf("byte %d is wrong, and nobody notices", n)
		}
	}
	if _, err := read(bytes.NewReader(good), len(payload)-1); !errors.Is(err, ErrCorrupt) {
		t.Errorf("bytes behind the expected ones: %v", err)
	}
}

// full takes some bytes, and no more.
type full struct{ room int }

var errFull = errors.New("full")

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestAConnectionThatBreaks(t *testing.T) {
	payload := bytes.Repeat([]byte("x"), 3*maxBlock)
	for room := range 4 {
		w, err := NewBlockWriter(&full{room: room * maxBlock}, nil)
		if err == nil {
			_, err = w.Write(payload)
		}
		if err == nil {
			err = w.Finish()
		}
		if !errors.Is(err, errFull) {
			t.Errorf("room for %d blocks: %v", room, err)
		}
	}
}
