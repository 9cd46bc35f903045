package criu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"google.golang.org/protobuf/proto"
)

// A page that is restored lazily and is still at the other node costs a round trip when it is touched, and
// pages that a process touches one after the other cost one round trip each. The images tell which pages
// are touched first: those that the kernel writes on the way back to the process (the area of rseq(2), a
// frame for a pending signal), the thread's stack and local memory, and the targets of its registers. Seen
// with C and Go programs and a shell of 1 to 12 threads: the first 3 to 12 pages that they touched were all
// among these, of which there are 3 to 10 for each thread.

// Touch is a page that is used as soon as a restored process runs, or before.
type Touch struct {
	PID     uint32 // as in the names of the images: in its own PID namespace
	Address uint64 // within the page; nothing may be there
}

const (
	imagePstree = 0x50273030 // PSTREE_MAGIC of criu/include/magic.h
	imageCore   = 0x55053847 // CORE_MAGIC
	pstreeName  = "pstree.img"

	// of all processes together: more are useless, because they are sent while nothing runs
	maxTouched     = 1 << 16
	maxTouchEntry  = 4 << 20 // an entry has a few bytes for each thread, or 150 for each pending signal
	redZone        = 128     // below the stack pointer, usable by a function (System V ABI, AMD64)
	signalFrame    = 4 << 10 // with AVX-512 it has 3.5 KiB (arch/x86/kernel/fpu/signal.c)
	lowestUserPage = 64 << 10
	noStack        = 2 // SS_DISABLE of include/uapi/linux/signal.h
)

// Order of pages: those that any thread certainly touches come before those that one may need next.
const (
	byKernel   = iota // before a single instruction
	byFirst           // by the first instructions
	byRegister        // very likely soon
	beside            // next to these
	orders
)

// touches are the addresses of one thread or of all, by order.
type touches [orders][]uint64

// Touched lists the pages that are touched first when the processes of a dump are restored, the most
// important first. A page may be listed twice, and may not exist.
func Touched(imagesDir string) ([]Touch, error) {
	var trees []*pstree.PstreeEntry
	err := eachEntry(filepath.Join(imagesDir, pstreeName), imagePstree, func(data []byte) error {
		var one pstree.PstreeEntry
		trees = append(trees, &one)
		return proto.Unmarshal(data, &one)
	})
	if err != nil {
		return nil, fmt.Errorf("list the pages that are touched first: %w", err)
	}
	var all [orders][]Touch
	for _, process := range trees {
		for _, thread := range process.GetThreads() {
			err := touchedBy(imagesDir, process.GetPid(), thread, &all)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // no longer a process
				return nil, fmt.Errorf("list the pages that are touched first: thread %d of process %d: %w",
					thread, process.GetPid(), err)
			}
			if len(all[byKernel])+len(all[byFirst]) > maxTouched {
				break
			}
		}
	}
	list := slices.Concat(all[:]...)
	return list[:min(len(list), maxTouched)], nil
}

func touchedBy(imagesDir string, pid, thread uint32, all *[orders][]Touch) error {
	path := filepath.Join(imagesDir, fmt.Sprintf("core-%d.img", thread))
	return eachEntry(path, imageCore, func(data []byte) error {
		var entry core.CoreEntry
		if err := proto.Unmarshal(data, &entry); err != nil {
			return err
		}
		for order, addresses := range touchesOf(&entry) {
			for _, address := range addresses {
				if address >= lowestUserPage && address < maxUserAddress {
					all[order] = append(all[order], Touch{PID: pid, Address: address})
				}
			}
		}
		return nil
	})
}

// maxUserAddress is where user space ends with five levels of page tables.
const maxUserAddress = 1 << 57

// touchesOf returns what a thread touches. A thread that has ended touches nothing.
func touchesOf(entry *core.CoreEntry) (t touches) {
	var stack, area uint64 // where they are
	switch {
	case entry.GetThreadInfo() != nil:
		stack, area = t.registersX86(entry)
	case entry.GetTiAarch64() != nil:
		r := entry.GetTiAarch64().GetGpregs()
		stack, area = r.GetSp(), entry.GetTiAarch64().GetTls()
		t[byFirst] = append(t[byFirst], r.GetPc())
		t[byRegister] = append(t[byRegister], r.GetRegs()...)
		t[beside] = append(t[beside], entry.GetTiAarch64().GetClearTidAddr())
	default:
		return t
	}
	page := uint64(os.Getpagesize())
	thread := entry.GetThreadCore()
	t[byKernel] = append(t[byKernel], thread.GetRseqEntry().GetRseqAbiPointer())
	t[byFirst] = append(t[byFirst], stack, area)
	t[beside] = append(t[beside], stack-redZone, stack+page, area-page, area+page, thread.GetFutexRla(),
		stack+2*page)
	frames := beside
	if len(thread.GetSignalsP().GetSignals())+len(entry.GetTc().GetSignalsS().GetSignals()) > 0 {
		frames = byKernel
	}
	if own := thread.GetSas(); own != nil && own.GetSsFlags()&noStack == 0 { // sigaltstack(2)
		stack = own.GetSsSp() + own.GetSsSize()
	}
	t[frames] = append(t[frames], stack-redZone, stack-redZone-signalFrame)
	return t
}

func (t *touches) registersX86(entry *core.CoreEntry) (stack, area uint64) {
	r := entry.GetThreadInfo().GetGpregs()
	t[byFirst] = append(t[byFirst], r.GetIp())
	// Arguments of a system call first: the call is restarted, and uses them at once.
	t[byRegister] = append(t[byRegister], r.GetDi(), r.GetSi(), r.GetDx(), r.GetR10(), r.GetR8(), r.GetR9(),
		r.GetBp(),
		r.GetBx(), r.GetR12(), r.GetR13(), r.GetR14(), r.GetR15(), r.GetAx(), r.GetCx(), r.GetR11(),
		r.GetGsBase())
	for _, tls := range entry.GetThreadInfo().GetTls() { // of a 32-bit program
		t[byFirst] = append(t[byFirst], uint64(tls.GetBaseAddr()))
	}
	t[beside] = append(t[beside], entry.GetThreadInfo().GetClearTidAddr())
	return r.GetSp(), r.GetFsBase()
}

// eachEntry calls do for each entry of an image.
func eachEntry(path string, kind uint32, do func(data []byte) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	if err := parseEntries(r, kind, do); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

func parseEntries(r io.Reader, kind uint32, do func(data []byte) error) error {
	var magic [8]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return fmt.Errorf("%w: %w", errImage, err)
	}
	if binary.LittleEndian.Uint32(magic[:]) != imageCommon || binary.LittleEndian.Uint32(magic[4:]) != kind {
		return fmt.Errorf("%w: it begins with %x", errImage, magic)
	}
	for {
		data, err := readImageEntry(r, maxTouchEntry)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = do(data)
		}
		if err != nil {
			return err
		}
	}
}
