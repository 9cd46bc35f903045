package criu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/memory"
)

// largeRequest returns the request for a lazy dump in which all processes count as large.
func (c *container) largeRequest() DumpRequest {
	c.t.Helper()
	request := c.request()
	request.LazyPages = true
	var err error
	request.Large, err = c.group.Procs()
	must(c.t, err)
	return request
}

// TestCut dumps processes with large mappings, whole and cut, and checks that their images are the same,
// except for the pages of what was cut and for MAP_NORESERVE. The pages are listed, and package memory has
// them.
func TestCut(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	for _, what := range []string{"map-large", "child", "child-zombie", "nothing"} {
		client.do(what)
	}
	s := memory.NewSource(memory.SourceConfig{Processes: c.group.Procs})
	received := map[memory.Task]map[uint64][]byte{}
	receive(t, received, s.Round)
	request := c.largeRequest()
	whole := request
	whole.Large = nil
	must(t, c.refreeze())
	wholeImages, wholeLeft := c.memoryImages(whole)
	cutImages, cutLeft := c.memoryImages(request)
	if len(wholeImages) < 2 {
		t.Fatalf("%d images of memory, want one of each process", len(wholeImages))
	}
	for name, image := range wholeImages {
		if !proto.Equal(mappingsOf(t, cutImages[name]), mappingsOf(t, image)) {
			t.Errorf("%s of the cut dump is not that of the whole one", name)
		}
	}
	d, err := findTool(t).StartDump(deadline(t), request)
	must(t, err)
	must(t, d.Run(deadline(t), c.images))
	must(t, d.Release(c.refreeze))
	receive(t, received, s.Final)
	unseen := rangesOf(d.Cut())
	if len(d.Cut()) < 2 || len(d.Cut()[0].Ranges) < 5 {
		t.Errorf("cut: %+v", d.Cut())
	}
	left := memory.Left{Listed: wanted(t, c.images), Unseen: unseen}
	if stats, err := s.Complete(t.Context(), memory.NewEncoder(io.Discard), left); err != nil ||
		stats.Pages > 0 {
		t.Errorf("Complete: %+v, %v", stats, err)
	}
	wantAll(t, wholeLeft, append(cutLeft, unseen...))
	compareLeftOut(t, c, s, received)
	if err := uncovered(t, s, unseen); err == nil {
		t.Error("Complete does not notice that memory was cut that the source has not")
	}
	c.abort()
	client.count()
	must(t, s.Close())
}

// mappingsOf reads the image of a process's memory, without MAP_NORESERVE, which a table adds.
func mappingsOf(t *testing.T, image []byte) *mm.MmEntry {
	t.Helper()
	var entry mm.MmEntry
	must(t, proto.Unmarshal(image[min(len(image), 12):], &entry)) // two magic numbers and the length
	for _, v := range entry.Vmas {
		v.Flags = proto.Uint32(v.GetFlags() &^ unix.MAP_NORESERVE)
	}
	return &entry
}

// TestCutReserve dumps a process with a reserve of 1 TiB in both ways. CRIU would make lists of 4 GiB for
// it.
func TestCutReserve(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	client.do("map-reserve")
	client.do("map-large")
	for _, lazy := range []bool{true, false} {
		request := c.largeRequest()
		request.LazyPages = lazy
		must(t, c.refreeze())
		images, left := c.memoryImages(request)
		if len(images) != 1 || !lazy && len(left) > 0 {
			t.Errorf("lazy %v: %d images of memory, %d lists of what is left out", lazy, len(images),
				len(left))
		}
		c.abort()
		client.count()
	}
}

// memoryImages dumps a frozen container and gives the dump up. It returns the images of memory and what was
// left out.
func (c *container) memoryImages(request DumpRequest) (map[string][]byte, []memory.TaskMap) {
	c.t.Helper()
	c.emptyImages()
	d, err := findTool(c.t).StartDump(deadline(c.t), request)
	must(c.t, err)
	start := time.Now()
	must(c.t, d.Run(deadline(c.t), c.images))
	c.t.Logf("%d large processes: dump %v", len(request.Large), time.Since(start))
	images := map[string][]byte{}
	names, err := filepath.Glob(filepath.Join(c.images, "mm-*.img"))
	must(c.t, err)
	for _, name := range names {
		images[filepath.Base(name)], err = os.ReadFile(name)
		must(c.t, err)
	}
	left := wanted(c.t, c.images)
	must(c.t, d.Close())
	c.emptyImages()
	return images, left
}

func rangesOf(left []LazyMemory) []memory.TaskMap {
	var maps []memory.TaskMap
	for _, l := range left {
		m := memory.TaskMap{Task: memory.Task(l.PID)}
		for _, r := range l.Ranges {
			m.Areas = append(m.Areas, memory.Area{Start: r.Start, Pages: r.Pages})
		}
		maps = append(maps, m)
	}
	return maps
}

// wantAll checks that each page of some areas is in others.
func wantAll(t *testing.T, pages, in []memory.TaskMap) {
	t.Helper()
	for _, m := range pages {
		for _, a := range m.Areas {
			for i := range a.Pages {
				if at := a.Start + i*4096; !slices.ContainsFunc(in, func(o memory.TaskMap) bool {
					return o.Task == m.Task && slices.ContainsFunc(o.Areas, func(b memory.Area) bool {
						return b.Start <= at && at < b.Start+b.Pages*4096
					})
				}) {
					t.Fatalf("%#x of process %d is left out of the whole dump, and neither listed nor cut "+
						"in the other", at, m.Task)
				}
			}
		}
	}
}

// uncovered requests more than was cut.
func uncovered(t *testing.T, s *memory.Source, unseen []memory.TaskMap) error {
	t.Helper()
	more := slices.Clone(unseen)
	more[0].Areas = append(slices.Clone(more[0].Areas), memory.Area{Start: 4096, Pages: 1})
	_, err := s.Complete(t.Context(), memory.NewEncoder(io.Discard), memory.Left{Unseen: more})
	return err
}

// TestCutFails gives CRIU no table. It checks that the dump fails, with the reason, and that the container
// continues.
func TestCutFails(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	client.count()
	d, err := findTool(t).StartDump(deadline(t), c.largeRequest())
	must(t, err)
	d.tables.of[0].pid = maxPID + 1
	must(t, c.refreeze())
	if err := d.Run(deadline(t), c.images); err == nil ||
		!strings.Contains(err.Error(), "there is no table") {
		t.Errorf("Run: %v, want that there is no table", err)
	}
	must(t, d.Close())
	must(t, c.group.Thaw())
	client.count()
}

// TestNoCut lists a process twice, for which no second table can be made, and checks that the dump examines
// everything.
func TestNoCut(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	client.do("map-large")
	request := c.largeRequest()
	request.Large = append(request.Large, request.Large...)
	must(t, c.refreeze())
	d, err := findTool(t).StartDump(deadline(t), request)
	must(t, err)
	must(t, d.Run(deadline(t), c.images))
	if d.Cut() != nil || d.tables != nil {
		t.Errorf("cut: %+v", d.Cut())
	}
	must(t, d.Close())
	c.abort()
	client.count()
}

// TestHungCRIU makes CRIU wait for a table that never comes. It checks that giving the dump up kills CRIU,
// and that the container continues.
func TestHungCRIU(t *testing.T) {
	for name, end := range map[string]func(d *Dump, images string) error{
		"cancelled": func(d *Dump, images string) error {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := d.Run(ctx, images); !errors.Is(err, context.DeadlineExceeded) {
				return errors.Join(errors.New("Run does not say that it was given up"), err)
			}
			return nil
		},
		"killed": func(d *Dump, images string) error {
			timer := time.AfterFunc(300*time.Millisecond, func() { _ = d.process.Process.Kill() })
			defer timer.Stop()
			if err := d.Run(t.Context(), images); err == nil || !strings.Contains(err.Error(), "CRIU ended") {
				return errors.Join(errors.New("Run does not say that CRIU has ended"), err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t)
			client := c.dial()
			client.count()
			d, err := findTool(t).StartDump(deadline(t), c.largeRequest())
			must(t, err)
			d.patience = 100 * time.Millisecond
			unserved := d.tables
			d.tables = nil
			t.Cleanup(unserved.close)
			must(t, c.refreeze())
			if err := end(d, c.images); err != nil {
				t.Error(err)
			}
			must(t, d.Close())
			c.abort()
			client.count()
		})
	}
}

// TestHungInRollBack stops a CRIU that holds the processes, and checks that Close does not wait for CRIU
// for ever.
func TestHungInRollBack(t *testing.T) {
	c := newContainer(t)
	client := c.dial()
	client.count()
	d := c.startDump()
	d.patience = 100 * time.Millisecond
	must(t, d.Run(deadline(t), c.images))
	must(t, d.process.Process.Signal(unix.SIGSTOP))
	must(t, d.Close())
	c.abort()
	client.count()
}

const exampleTable = `55d0c0000000-55d0c0200000 rw-p 00000000 00:00 0                          [heap]
Size:               2048 kB
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000400000 rw-s 00000000 00:01 1234                       /dev/zero (deleted)
Size:               4096 kB
VmFlags: rd wr sh mr mw me ms sd
7f0010000000-7f0010400000 ---p 00000000 00:00 0
ProtectionKey:         0
VmFlags: mr mw me nr sd
7f0020000000-7f0020400000 rw-p 00000000 00:00 0                          [anon:a name]
VmFlags: rd wr mr mw me lo ac
7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0                          [stack]
VmFlags: rd wr mr mw me gd ac
`

func TestReadMappings(t *testing.T) {
	all, err := readMappings(strings.NewReader(exampleTable))
	must(t, err)
	var out bytes.Buffer
	for i, m := range all {
		if want := i == 0 || i == 2; m.canCut() != want {
			t.Errorf("%+v: %v", m, !want)
		}
		m.write(&out)
	}
	want := "7f0020000000-7f0020400000 rw-p 00000000 00:00 0                          [anon:a " +
		"name]\nVmFlags: rd wr mr mw me lo ac\n"
	if len(all) != 5 || !strings.Contains(out.String(), want) {
		t.Errorf("%d mappings:\n%s", len(all), &out)
	}
}

func FuzzReadMappings(f *testing.F) {
	f.Add(exampleTable)
	f.Add("VmFlags: rd\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := readMappings(strings.NewReader(text))
		if err != nil {
			return
		}
		var out bytes.Buffer
		for _, m := range all {
			m.canCut()
			m.write(&out)
		}
		again, err := readMappings(&out)
		if err != nil || len(again) != len(all) {
			t.Errorf("%d mappings, written and read %d, %v", len(all), len(again), err)
		}
	})
}

// memoryImage makes an image with mappings, each from one address to another.
func memoryImage(mappings ...[2]uint64) []byte {
	entry := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7) // mm_start_code
	for _, m := range mappings {
		one := protowire.AppendVarint(protowire.AppendTag(nil, fieldStart, protowire.VarintType), m[0])
		one = protowire.AppendVarint(protowire.AppendTag(one, fieldEnd, protowire.VarintType), m[1])
		one = protowire.AppendVarint(protowire.AppendTag(one, 6, protowire.VarintType), 0x22) // flags
		entry = protowire.AppendBytes(protowire.AppendTag(entry, fieldMapping, protowire.BytesType), one)
	}
	image := binary.LittleEndian.AppendUint32(nil, imageCommon)
	image = binary.LittleEndian.AppendUint32(image, imageMemory)
	image = binary.LittleEndian.AppendUint32(image, uint32(len(entry)))
	return append(image, entry...)
}

func TestMendMemoryImage(t *testing.T) {
	was := memoryImage([2]uint64{0x1000, 0x2000}, [2]uint64{0x5000, 0x6000}, [2]uint64{0x10000, 0x90000})
	want := memoryImage([2]uint64{0x1000, 0x2000}, [2]uint64{0x5000, 0x8000000}, [2]uint64{0x10000, 0x90000})
	got, err := mendMemoryImage(was, []PageRange{{Start: 0x6000, Pages: 0x7ffa}}, 4096)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%x, %v, want\n%x", got, err, want)
	}
	for name, cut := range map[string]PageRange{
		"not there": {Start: 0x3000, Pages: 1}, "not cut": {Start: 0x11000, Pages: 0x100},
	} {
		if _, err := mendMemoryImage(was, []PageRange{cut}, 4096); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, image := range [][]byte{nil, was[:11], was[:len(was)-1], append(bytes.Clone(was), 0)} {
		if _, err := mendMemoryImage(image, nil, 4096); err == nil {
			t.Errorf("%x: no error", image)
		}
	}
}

func FuzzMendMemoryImage(f *testing.F) {
	f.Add(memoryImage([2]uint64{0x1000, 0x2000}), uint64(0x2000), uint64(7))
	f.Fuzz(func(t *testing.T, image []byte, start, pages uint64) {
		mended, err := mendMemoryImage(image, []PageRange{{Start: start, Pages: pages % (1 << 40)}}, 4096)
		if err == nil && len(mended) < len(image)-10 {
			t.Errorf("%d bytes became %d", len(image), len(mended))
		}
	})
}
