package memory

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// anObject is a memfd with two parts of random content, a hole between them and half a page at its end, as
// after a round.
func anObject(t testing.TB, bytes int) (*object, *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("compared", unix.MFD_CLOEXEC)
	must(t, err)
	writer := os.NewFile(uintptr(fd), "compared")
	t.Cleanup(func() { _ = writer.Close() })
	random := rand.NewChaCha8([32]byte{7})
	_, err = io.CopyN(writer, random, int64(bytes))
	must(t, err)
	_, err = io.CopyN(io.NewOffsetWriter(writer, int64(2*bytes)), random, int64(bytes-PageSize()/2))
	must(t, err)
	device, _, err := kernel.SharedDevice()
	must(t, err)
	var info unix.Stat_t
	must(t, unix.Fstat(fd, &info))
	open := func() (*os.File, error) { return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) }
	o, err := openObject(open, info.Ino, device)
	must(t, err)
	t.Cleanup(func() { _ = o.file.Close() })
	o.Task, o.owner = FirstObject, &task{id: FirstObject, pages: pages{sent: pageset.Set{}}}
	stats := RoundStats{}
	must(t, o.send(t.Context(), newReader(discard{}, &stats), true, false))
	if pages := uint64(2 * bytes / PageSize()); stats.Pages != pages+1 && stats.Pages != pages {
		t.Fatalf("%d pages sent, want %d", stats.Pages, pages)
	}
	return o, writer
}

// compared compares an object in the freeze, and returns the addresses that were sent.
func compared(t *testing.T, o *object) (sent []uint64, stats RoundStats) {
	t.Helper()
	sink := sinkFunc(func(run Run, _ []byte) error {
		for i := range uint64(run.Pages) {
			sent = append(sent, run.Address+i*uint64(PageSize()))
		}
		return nil
	})
	must(t, o.send(t.Context(), newReader(sink, &stats), true, true))
	return sent, stats
}

// TestCompare: exactly the written pages are sent, even at the edges of parts and pieces.
func TestCompare(t *testing.T) {
	const size = 5 << 20
	o, writer := anObject(t, size)
	if sent, stats := compared(t, o); len(sent) != 0 || stats.UnchangedPages != uint64(2*size/PageSize()) {
		t.Errorf("%d pages are sent though nothing was written, %d unchanged", len(sent),
			stats.UnchangedPages)
	}
	page := uint64(PageSize())
	written := []uint64{0, page, sharedChunk - page, sharedChunk, size - page, 2 * size, 3*size - page}
	for _, at := range written {
		_, err := writer.WriteAt([]byte("x"), int64(at))
		must(t, err)
	}
	sent, stats := compared(t, o)
	if !slices.Equal(sent, written) || stats.UnchangedPages != uint64(2*size)/page-uint64(len(written)) {
		t.Errorf("sent %x, want %x; %d unchanged", sent, written, stats.UnchangedPages)
	}
	if sent, _ := compared(t, o); len(sent) != 0 {
		t.Errorf("sent again: %x", sent)
	}
}

// BenchmarkCompare compares shared memory as in the freeze and as in a round. The freeze has other work in
// parallel, so the processor time counts as well as the duration.
func BenchmarkCompare(b *testing.B) {
	for _, way := range []string{"in the freeze", "in a round"} {
		b.Run(way, func(b *testing.B) {
			o, _ := anObject(b, 128<<20)
			b.SetBytes(256 << 20)
			data, err := kernel.DataRanges(o.file)
			must(b, err)
			stats := RoundStats{}
			r := newReader(discard{}, &stats)
			began := processorTime(b)
			r.begin(o.owner, o.known.changed)
			for b.Loop() {
				if way == "in a round" {
					must(b, o.sendAll(b.Context(), r, data))
				} else {
					must(b, o.sendDiffering(b.Context(), r, data))
				}
			}
			b.ReportMetric((processorTime(b)-began)/float64(b.N)*1e3, "cpu-ms/op")
		})
	}
}

// processorTime returns the processor time of this process, in seconds.
func processorTime(b *testing.B) float64 {
	var used unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
