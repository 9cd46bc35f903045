package memory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// device is a file whose reads last as long as the test wants: a file system in user space (FUSE,
// include/uapi/linux/fuse.h) with a file as its root. The kernel writes the answer into the pages of a
// reader with O_DIRECT as any device does: without a page fault.
type device struct {
	t       *testing.T
	path    string
	fd      int
	reading chan struct{} // a read has begun
	answer  chan struct{} // it may end
}

// newDevice mounts the file in a mount namespace of this thread, which must start the programs that use it.
func newDevice(t *testing.T) *device {
	t.Helper()
	d := &device{t: t, path: filepath.Join(t.TempDir(), "device"), reading: make(chan struct{}),
		answer: make(chan struct{})}
	must(t, os.WriteFile(d.path, nil, 0o600))
	runtime.LockOSThread() // never unlocked: the thread, and the namespace with it, ends with the test
	must(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	var err error
	d.fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Mount("device", d.path, "fuse", 0,
		fmt.Sprintf("fd=%d,rootmode=100644,user_id=0,group_id=0", d.fd)))
	t.Cleanup(func() {
		must(t, unix.Unmount(d.path, unix.MNT_DETACH))
		must(t, unix.Close(d.fd))
	})
	go d.serve()
	return d
}

const (
	fuseGetattr, fuseOpen, fuseRead, fuseInit = 3, 14, 15, 26
	fuseHeader                                = 40
)

func (d *device) serve() {
	request := make([]byte, 1<<20)
	for {
		n, err := unix.Read(d.fd, request)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) { // or the request was withdrawn
			continue
		}
		if err != nil {
			return // unmounted
		}
		body := request[fuseHeader:n]
		switch operation := binary.NativeEndian.Uint32(request[4:]); operation {
		case fuseInit: // version 7.31, and no features
			answer := make([]byte, 64)
			binary.NativeEndian.PutUint32(answer, 7)
			binary.NativeEndian.PutUint32(answer[4:], 31)
			binary.NativeEndian.PutUint32(answer[20:], 64<<10) // largest write
			d.reply(request, 0, answer)
		case fuseGetattr: // inode 1, a file of a megabyte
			answer := make([]byte, 104)
			binary.NativeEndian.PutUint64(answer[16:], 1)
			binary.NativeEndian.PutUint64(answer[24:], 1<<20)
			binary.NativeEndian.PutUint32(answer[76:], unix.S_IFREG|0o644)
			binary.NativeEndian.PutUint32(answer[80:], 1)
			d.reply(request, 0, answer)
		case fuseOpen: // FOPEN_DIRECT_IO
			answer := make([]byte, 16)
			answer[8] = 1
			d.reply(request, 0, answer)
		case fuseRead:
			size := binary.NativeEndian.Uint32(body[16:])
			d.reading <- struct{}{}
			<-d.answer
			d.reply(request, 0, bytes.Repeat([]byte{5}, int(size)))
		default:
			d.reply(request, -int32(unix.ENOSYS), nil)
		}
	}
}

func (d *device) reply(request []byte, code int32, body []byte) {
	answer := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
	answer = binary.NativeEndian.AppendUint32(answer, uint32(code))
	answer = append(answer, request[8:16]...) // the request's number
	_, _ = unix.Write(d.fd, append(answer, body...))
}

// TestDeviceWrites: data comes into memory between two rounds by a transfer that began before the first:
// because the program reads with O_DIRECT, or because the file system reads that way.
func TestDeviceWrites(t *testing.T) {
	for _, name := range []string{"slow", "slow-cached", "slow, and pages stay"} {
		kind, _, stay := strings.Cut(name, ",")
		t.Run(name, func(t *testing.T) {
			d := newDevice(t)
			p := start(t, kind, 1, 1, d.path)
			<-d.reading
			s := NewSource(SourceConfig{Processes: p.group.Procs})
			target := newCopied(t)
			for range 3 {
				target.round(s, false)
			}
			if stay {
				s.Leave()
				target.round(s, false)
			}
			d.answer <- struct{}{}
			for deadline := time.Now().Add(5 * time.Second); p.check() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the transfer does not end")
				}
			}
			p.freeze()
			target.round(s, true)
			target.round(s, true)
			compareLeft(t, p, s, target)
			p.thaw()
			must(t, s.Close())
		})
	}
}

// TestAsynchronousReads lets a disk write to memory all the time, while the program continues and across
// the freeze.
func TestAsynchronousReads(t *testing.T) {
	p := start(t, "aio", 1, 2)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	target := newCopied(t)
	for range 10 {
		for range 3 {
			target.round(s, false)
		}
		p.freeze()
		// transfers under way complete
		for quiet, deadline := 0, time.Now().Add(time.Minute); quiet < 2; quiet++ {
			if target.round(s, true).Pages > 0 {
				quiet = -1
			}
			if time.Now().After(deadline) {
				t.Fatal("the disk does not end")
			}
		}
		maps, err := s.Map()
		must(t, err)
		target.verify(p, maps)
		p.thaw()
		p.progress()
	}
	must(t, s.Close())
	leavesNoTrace(t, p.pid())
}

// TestWrittenByOthers lets another process write to the memory, in both possible ways.
func TestWrittenByOthers(t *testing.T) {
	p := start(t, "block", 4, 1)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	target := newCopied(t)
	target.round(s, false)
	target.round(s, false)
	at := largest(t, p.pid())
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.pid()), os.O_RDWR, 0)
	must(t, err)
	defer mem.Close()
	content := bytes.Repeat([]byte("written by another process "), 1000)
	_, err = mem.WriteAt(content, int64(at+100))
	must(t, err)
	local := []unix.Iovec{{Base: &content[0]}}
	local[0].SetLen(len(content))
	_, err = unix.ProcessVMWritev(p.pid(), local,
		[]unix.RemoteIovec{{Base: uintptr(at + 1<<20), Len: len(content)}}, 0)
	must(t, err)
	p.freeze()
	if stats := target.round(s, true); stats.Pages < 14 {
		t.Errorf("only %d pages were written", stats.Pages)
	}
	maps, err := s.Map()
	must(t, err)
	target.verify(p, maps)
	p.thaw()
	must(t, s.Close())
}

// largest returns the start of the largest readable private anonymous mapping.
func largest(t *testing.T, pid int) uint64 {
	t.Helper()
	space, err := kernel.OpenAddressSpace(pid)
	must(t, err)
	defer space.Close()
	all, err := space.Mappings()
	must(t, err)
	var found kernel.Mapping
	for _, m := range all {
		if m.Readable && !m.Shared && !m.File && m.Name == "" && m.End-m.Start > found.End-found.Start &&
			m.End-m.Start < 8<<20 {
			found = m
		}
	}
	return found.Start
}
