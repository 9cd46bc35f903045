package parts

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"
)

func random(seed uint64, bytes int) []byte {
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	content := make([]byte, bytes)
	_, _ = source.Read(content)
	return content
}

func cut(t *testing.T, archive []byte) []Part {
	t.Helper()
	var parts []Part
	if err := Cut(bytes.NewReader(archive), int64(len(archive)), func(more []Part) error {
		parts = append(parts, more...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if length(parts) != int64(len(archive)) {
		t.Fatalf("%d parts have %d bytes of %d", len(parts), length(parts), len(archive))
	}
	return parts
}

// together assembles an archive from other archives and sent parts, and returns the size of the sent parts.
func together(t *testing.T, archive []byte, others ...[]byte) int64 {
	t.Helper()
	wanted := cut(t, archive)
	var lists [][]Part
	var readers []io.Reader
	for _, other := range others {
		lists = append(lists, cut(t, other))
		readers = append(readers, bytes.NewReader(other))
	}
	plan := Match(wanted, lists)
	runs, err := DecodeRuns(AppendRuns(nil, plan.Missing), len(wanted))
	if err != nil || !slices.Equal(runs, plan.Missing) {
		t.Fatalf("runs %v came as %v: %v", plan.Missing, runs, err)
	}
	var sent bytes.Buffer
	if err := Pick(iotest.HalfReader(bytes.NewReader(archive)), wanted, runs, &sent); err != nil {
		t.Fatal(err)
	}
	if int64(sent.Len()) != plan.MissingBytes {
		t.Fatalf("%d bytes were picked, want %d", sent.Len(), plan.MissingBytes)
	}
	for i := range readers {
		if !plan.Uses(i) {
			readers[i] = nil
		}
	}
	made, err := io.ReadAll(plan.Assemble(&sent, readers))
	if err != nil || !bytes.Equal(made, archive) {
		t.Fatalf("put together: %d bytes of %d, right: %t, %v", len(made), len(archive),
			bytes.Equal(made, archive), err)
	}
	return plan.MissingBytes
}

func TestTogether(t *testing.T) {
	const size = 16 << 20
	old, zeros := random(1, size), make([]byte, 4<<20)
	inserted := slices.Concat(old[:size/2], random(2, 100<<10), old[size/2+5:])
	for name, test := range map[string]struct {
		archive []byte
		others  [][]byte
		least   int64
		most    int64
	}{
		"nothing is there":      {old, nil, size, size},
		"it is there":           {old, [][]byte{old}, 0, 0},
		"some was inserted":     {inserted, [][]byte{old}, 100 << 10, 1 << 20},
		"a half in each of two": {old, [][]byte{old[:size/2], old[size/2:]}, 0, 1 << 20},
		"the halves in disorder": {slices.Concat(old[size/2:], old[:size/2]), [][]byte{old}, size / 3,
			size * 2 / 3},
		"zeros again and again": {slices.Concat(zeros, old, zeros), [][]byte{slices.Concat(zeros, old)},
			0, 5 << 20},
		"the same again":          {slices.Concat(old, old), [][]byte{old}, size / 2, size + 1<<20},
		"nothing in common":       {old, [][]byte{random(3, size)}, size, size},
		"what is there is longer": {old[size/4 : size/2], [][]byte{random(4, size), old}, 0, 1 << 20},
		"empty":                   {nil, [][]byte{old}, 0, 0},
		"an end of zeros":         {slices.Concat(old[:1000], zeros[:1024]), nil, 2024, 2024},
	} {
		t.Run(name, func(t *testing.T) {
			if sent := together(t, test.archive, test.others...); sent < test.least || sent > test.most {
				t.Errorf("%d bytes are sent, want %d to %d", sent, test.least, test.most)
			}
		})
	}
}

func TestList(t *testing.T) {
	parts := cut(t, random(1, 3<<20))
	encoded := Append(nil, parts)
	read, err := Read(iotest.OneByteReader(bytes.NewReader(encoded)), 3<<20)
	if err != nil || !slices.Equal(read, parts) {
		t.Fatalf("%d of %d parts, %v", len(read), len(parts), err)
	}
	huge := Append(nil, []Part{{Length: MaxPart + 1}})
	many := bytes.Repeat(Append(nil, []Part{{Length: 1}}), MaxParts+1)
	for name, test := range map[string]struct {
		list []byte
		size int64
	}{
		"cut off":            {encoded[:len(encoded)-1], 3 << 20},
		"too short":          {encoded[:len(encoded)-encodedPart], 3 << 20},
		"of another archive": {encoded, 3<<20 - 1}, "an empty part": {Append(nil, []Part{{}}), 0},
		"a huge part": {huge, 2 * MaxPart}, "too many": {many, MaxParts + 1},
	} {
		if _, err := Read(bytes.NewReader(test.list), test.size); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRuns(t *testing.T) {
	for name, runs := range map[string][]Run{
		"none in it": {{3, 0}}, "backwards": {{3, 1}, {2, 1}}, "twice": {{3, 2}, {4, 1}},
		"behind the end": {{9, 2}}, "around": {{9, 1<<32 - 1}},
	} {
		if _, err := DecodeRuns(AppendRuns(nil, runs), 10); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDiffers: data that differs from the list is noticed, wherever it comes from.
func TestDiffers(t *testing.T) {
	old := random(1, 4<<20)
	archive := slices.Concat(old, random(2, 1<<20))
	plan := Match(cut(t, archive), [][]Part{cut(t, old)})
	damaged := slices.Clone(old)
	damaged[1<<20]++
	missing := archive[int64(len(archive))-plan.MissingBytes:]
	for name, test := range map[string]struct{ missing, other []byte }{
		"another archive": {missing, damaged}, "an archive that ends": {missing, old[:2<<20]},
		"what comes": {random(3, len(missing)), old}, "what comes and ends": {missing[:100], old},
	} {
		_, err := io.ReadAll(plan.Assemble(bytes.NewReader(test.missing),
			[]io.Reader{bytes.NewReader(test.other)}))
		if !errors.Is(err, ErrDiffers) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(Append(nil, []Part{{Length: 5}, {Length: 7}}), int64(12))
	f.Fuzz(func(t *testing.T, list []byte, size int64) {
		parts, err := Read(bytes.NewReader(list), size)
		if err == nil && (length(parts) != size || !bytes.Equal(Append(nil, parts), list)) {
			t.Errorf("%d parts of %d bytes", len(parts), size)
		}
	})
}

func FuzzDecodeRuns(f *testing.F) {
	f.Add(AppendRuns(nil, []Run{{1, 2}, {5, 1}}), uint16(9))
	f.Fuzz(func(t *testing.T, encoded []byte, parts uint16) {
		runs, err := DecodeRuns(encoded, int(parts))
		if err != nil {
			return
		}
		list := slices.Repeat([]Part{{Length: 1}}, int(parts))
		var picked bytes.Buffer
		if err := Pick(bytes.NewReader(make([]byte, parts)), list, runs, &picked); err != nil ||
			picked.Len() > int(parts) {
			t.Errorf("%d bytes of %d, %v", picked.Len(), parts, err)
		}
	})
}

func BenchmarkCut(b *testing.B) {
	archive := random(1, 64<<20)
	b.SetBytes(int64(len(archive)))
	for b.Loop() {
		if err := Cut(bytes.NewReader(archive), int64(len(archive)),
			func([]Part) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
