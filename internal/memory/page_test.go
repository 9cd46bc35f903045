package memory

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestRunsRoundTrip(t *testing.T) {
	type sent struct {
		run  Run
		data []byte
	}
	var want []sent
	var wire bytes.Buffer
	e := NewEncoder(&wire)
	random := rand.NewChaCha8([32]byte{1})
	for i := range uint32(50) {
		s := sent{run: Run{Task: Task(i + 1), Address: uint64(i) << 32, Pages: i%MaxRunPages + 1,
			Zero: i%3 == 0}}
		if !s.run.Zero {
			s.data = make([]byte, int(s.run.Pages)*PageSize())
			_, _ = random.Read(s.data)
		}
		want = append(want, s)
		if err := e.Put(s.run, s.data); err != nil {
			t.Fatal(err)
		}
	}
	whole := wire.Bytes()

	var got []sent
	limits := Limits{Pages: 1 << 20, Runs: 50}
	err := Decode(&wire, &limits, func(r Run, data []byte) error {
		got = append(got, sent{r, bytes.Clone(data)})
		return nil
	})
	if err != nil || !slices.EqualFunc(got, want,
		func(a, b sent) bool { return a.run == b.run && bytes.Equal(a.data, b.data) }) {
		t.Fatalf("decoded %d runs of %d: %v", len(got), len(want), err)
	}
	for name, l := range map[string]Limits{"runs": {Pages: 1 << 20, Runs: 49},
		"pages": {Pages: 10, Runs: 50}} {
		if err := Decode(bytes.NewReader(whole), &l, ignoreRun); !errors.Is(err, ErrMalformed) {
			t.Errorf("limit of %s: %v", name, err)
		}
	}
	limits = Limits{Pages: 1 << 20, Runs: 50}
	if err := Decode(bytes.NewReader(whole[:len(whole)-1]), &limits, ignoreRun); !errors.Is(err,
		io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
	limits = Limits{Pages: 1 << 20, Runs: 50}
	refused := errors.New("refused")
	if err := Decode(bytes.NewReader(whole), &limits,
		func(Run, []byte) error { return refused }); err != refused {
		t.Errorf("an error of place becomes %v", err)
	}
}

func ignoreRun(Run, []byte) error { return nil }

func TestEncoderRefuses(t *testing.T) {
	size := PageSize()
	for name, c := range map[string]struct {
		run  Run
		data int
	}{
		"no task":        {Run{0, 0, 1, true}, 0},
		"no pages":       {Run{1, 0, 0, true}, 0},
		"many pages":     {Run{1, 0, MaxRunPages + 1, false}, (MaxRunPages + 1) * size},
		"many zeros":     {Run{1, 0, MaxZeroPages + 1, true}, 0},
		"not aligned":    {Run{1, 5, 1, true}, 0},
		"beyond the end": {Run{1, maxAddress - uint64(size), 2, true}, 0},
		"short data":     {Run{1, 0, 2, false}, size},
		"zero with data": {Run{1, 0, 1, true}, size},
	} {
		if err := NewEncoder(io.Discard).Put(c.run, make([]byte, c.data)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMapRoundTrip(t *testing.T) {
	size := uint64(PageSize())
	want := []TaskMap{{Task: 7, Areas: []Area{{0, 1}, {size, 3}, {1 << 40, 1 << 20}}}, {Task: 1}}
	var wire bytes.Buffer
	if err := EncodeMap(&wire, want); err != nil {
		t.Fatal(err)
	}
	whole := wire.Bytes()
	first := len(whole) - mapHeaderSize
	got, err := DecodeMap(&wire)
	if err != nil || !slices.EqualFunc(got, want, equalMaps) {
		t.Fatalf("%v, %v", got, err)
	}
	for n := range whole {
		if n == first || n == 0 {
			continue // it ends between two tasks
		}
		if _, err := DecodeMap(bytes.NewReader(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut off after %d bytes: %v", n, err)
		}
	}
	for name, areas := range map[string][]Area{
		"descending": {{size * 8, 1}, {0, 1}}, "overlap": {{0, 2}, {size, 1}}, "not aligned": {{5, 1}},
	} {
		if err := EncodeMap(io.Discard, []TaskMap{{Task: 1, Areas: areas}}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, m := range map[string][]TaskMap{
		"twice":  {{Task: 1}, {Task: 1}},
		"empty":  {{Task: 1, Areas: []Area{{0, 0}}}},
		"beyond": {{Task: 1, Areas: []Area{{size, maxAddress / size}}}},
	} {
		wire.Reset()
		if err := EncodeMap(&wire, m); err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeMap(&wire); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func equalMaps(a, b TaskMap) bool { return a.Task == b.Task && slices.Equal(a.Areas, b.Areas) }

// FuzzDecode checks that accepted input is within the limits and encodes to itself.
func FuzzDecode(f *testing.F) {
	var seed bytes.Buffer
	e := NewEncoder(&seed)
	_ = e.Put(Run{1, 1 << 40, 300, true}, nil)
	_ = e.Put(Run{2, 1 << 20, 1, false}, make([]byte, PageSize()))
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, input []byte) {
		limits := Limits{Pages: 16, Runs: 64}
		var again bytes.Buffer
		e := NewEncoder(&again)
		err := Decode(bytes.NewReader(input), &limits, e.Put)
		if !bytes.HasPrefix(input, again.Bytes()) || err == nil && again.Len() != len(input) {
			t.Errorf("read %d bytes, encoded %d: %v", len(input), again.Len(), err)
		}
	})
}

// FuzzDecodeMap does the same for maps.
func FuzzDecodeMap(f *testing.F) {
	var seed bytes.Buffer
	_ = EncodeMap(&seed, []TaskMap{{Task: 7, Areas: []Area{{0, 1}, {1 << 40, 9}}}})
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, input []byte) {
		maps, err := DecodeMap(bytes.NewReader(input))
		if err != nil {
			return
		}
		var again bytes.Buffer
		// numbers may have longer encodings
		if err := EncodeMap(&again, maps); err != nil || again.Len() > len(input) {
			t.Errorf("%d bytes were decoded and encoded again, to %d: %v", len(input), again.Len(), err)
		}
		if same, err := DecodeMap(&again); err != nil || !slices.EqualFunc(same, maps, equalMaps) {
			t.Errorf("decoded again it differs: %v", err)
		}
	})
}
