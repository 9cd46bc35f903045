package chunk

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func random(size int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// cut returns the lengths of the chunks of content that arrives in pieces of a given size.
func cut(sizes Sizes, content []byte, piece int) (lengths []int) {
	c := NewCutter(sizes)
	length := 0
	for len(content) > 0 {
		p := content[:min(piece, len(content))]
		content = content[len(p):]
		for len(p) > 0 {
			n, end := c.Next(p)
			length += n
			if p = p[n:]; end {
				lengths, length = append(lengths, length), 0
			}
		}
	}
	if length > 0 {
		lengths = append(lengths, length)
	}
	return lengths
}

func TestCutsDoNotDependOnHowTheContentComes(t *testing.T) {
	content, sizes := random(4<<20, 1), SizesFor(4<<20)
	want := cut(sizes, content, len(content))
	for _, piece := range []int{1000, 4096, 65_537, 1 << 20} {
		got := cut(sizes, content, piece)
		if len(got) != len(want) {
			t.Fatalf("%d chunks in pieces of %d, %d in one", len(got), piece, len(want))
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("chunk %d has %d bytes in pieces of %d, %d in one", i, got[i], piece, want[i])
			}
		}
	}
}

func TestChunksHaveTheirSizes(t *testing.T) {
	for name, content := range map[string][]byte{"random": random(8<<20, 2), "zeros": make([]byte, 8<<20),
		"text": bytes.Repeat([]byte("the same words again and again. "), 1<<18)} {
		sizes, total := SizesFor(int64(len(content))), 0
		lengths := cut(sizes, content, 1<<20)
		for i, n := range lengths {
			total += n
			if int64(n) > sizes.Most || int64(n) < sizes.Least && i+1 < len(lengths) {
				t.Errorf("%s: a chunk of %d bytes", name, n)
			}
		}
		if total != len(content) {
			t.Errorf("%s: chunks of %d bytes in all, want %d", name, total, len(content))
		}
		if name == "random" && (len(lengths) < 8<<20/(128<<10) || len(lengths) > 8<<20/(32<<10)) {
			t.Errorf("%d chunks", len(lengths))
		}
	}
	if s := SizesFor(1 << 40); (1<<40)/s.Least > 8*MaxChunks {
		t.Errorf("a file of a TiB may have %d chunks", (1<<40)/s.Least)
	}
}

func TestAnInsertedByteChangesFewChunks(t *testing.T) {
	hasher, err := NewHasher(Key{1})
	if err != nil {
		t.Fatal(err)
	}
	content := random(8<<20, 3)
	digests := func(p []byte) map[Digest]bool {
		found := map[Digest]bool{}
		for _, n := range cut(SizesFor(8<<20), p, 1<<20) {
			found[hasher.Of(p[:n])] = true
			p = p[n:]
		}
		return found
	}
	before, other := digests(content), 0
	changed := append(append(bytes.Clone(content[:3<<20]), 'x'), content[3<<20:]...)
	for d := range digests(changed) {
		if !before[d] {
			other++
		}
	}
	if other < 1 || other > 4 {
		t.Errorf("%d of %d chunks are new", other, len(before))
	}
}

func TestDigests(t *testing.T) {
	one, err := NewHasher(Key{1})
	if err != nil {
		t.Fatal(err)
	}
	two, err := NewHasher(Key{2})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Digest]int{}
	content := random(5*piece+77, 4)
	for _, n := range []int{0, 1, 15, 16, 17, piece - 1, piece, piece + 1, 2 * piece, 5*piece + 77} {
		whole := one.Of(content[:n])
		if before, ok := seen[whole]; ok {
			t.Errorf("%d bytes have the digest of %d", n, before)
		}
		seen[whole] = n
		for p := content[:n]; len(p) > 0; {
			m := min(len(p), 10_007)
			one.Write(p[:m])
			p = p[m:]
		}
		if n > 0 && one.Sum() != whole {
			t.Errorf("%d bytes in pieces have another digest", n)
		}
		if two.Of(content[:n]) == whole {
			t.Errorf("%d bytes have the same digest with another key", n)
		}
	}
	// Very long content, whose digests are hashed themselves, and a difference at its very beginning.
	long := make([]byte, piece)
	var sums [2]Digest
	for i := range sums {
		long[0] = byte(i)
		for range piece/16 + 10 {
			one.Write(long)
			long[0] = 0
		}
		sums[i] = one.Sum()
	}
	if sums[0] == sums[1] {
		t.Error("a difference at the beginning of long content is not seen")
	}
}

func BenchmarkCut(b *testing.B) {
	content := random(16<<20, 5)
	b.SetBytes(int64(len(content)))
	for range b.N {
		cut(SizesFor(1<<30), content, 1<<20)
	}
}

func BenchmarkDigest(b *testing.B) {
	content := random(16<<20, 6)
	hasher, _ := NewHasher(Key{1})
	b.SetBytes(int64(len(content)))
	for range b.N {
		hasher.Of(content)
	}
}
