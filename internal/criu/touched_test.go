package criu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	core_aarch64 "github.com/checkpoint-restore/go-criu/v7/crit/images/core-aarch64"
	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/rseq"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/siginfo"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/kernel"
)

// TestTouched compares with what the kernel reports about the frozen threads.
func TestTouched(t *testing.T) {
	c := newContainer(t)
	c.dial().count()
	request := c.request()
	request.LazyPages = true
	d, err := findTool(t).StartDump(deadline(t), request)
	must(t, err)
	must(t, c.refreeze())
	must(t, d.Run(deadline(t), c.images))
	must(t, d.Release(c.refreeze))
	list, err := Touched(c.images)
	must(t, err)
	pids, err := c.group.Procs()
	must(t, err)
	threads := 0
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		must(t, err)
		for _, stack := range stacksOf(t, pid) {
			threads++
			if !slices.Contains(list, Touch{PID: uint32(process.NamespaceID), Address: stack}) {
				t.Errorf("the stack pointer of process %d is %#x: not among %d places", pid, stack, len(list))
			}
		}
	}
	if threads < 2 || len(list) > threads*40 {
		t.Errorf("%d places of %d threads", len(list), threads)
	}
	c.abort()
	must(t, d.Close())
}

// stacksOf reads the stack pointers of all threads of a process (proc_pid_syscall(5)).
func stacksOf(t *testing.T, pid int) (all []uint64) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	must(t, err)
	for _, f := range files {
		var fields []string
		for limit := time.Now().Add(10 * time.Second); len(fields) < 3; time.Sleep(time.Millisecond) {
			data, err := os.ReadFile(f)
			must(t, err)
			fields = strings.Fields(string(data)) // or "running", for slightly longer than the freezer waits
			if time.Now().After(limit) {
				t.Fatalf("%s: %q", f, data)
			}
		}
		var stack uint64
		_, err = fmt.Sscanf(fields[len(fields)-2], "0x%x", &stack)
		must(t, err)
		all = append(all, stack)
	}
	return all
}

// TestTouchedOrder checks that the certain addresses of all threads come first, on both architectures.
func TestTouchedOrder(t *testing.T) {
	stack, area := uint64(0x7f0000010000), uint64(0x7f0000020000)
	entry := &core.CoreEntry{
		TiAarch64: &core_aarch64.ThreadInfoAarch64{
			Tls: &area, Gpregs: &core_aarch64.UserAarch64RegsEntry{Sp: &stack,
				Regs: []uint64{1, 0x7f0000030000}},
		},
		ThreadCore: &core.ThreadCoreEntry{
			RseqEntry: &rseq.RseqEntry{RseqAbiPointer: proto.Uint64(area + 32)},
			SignalsP:  &siginfo.SignalQueueEntry{Signals: []*siginfo.SiginfoEntry{{}}},
			Sas: &core.ThreadSasEntry{SsSp: proto.Uint64(0x7f0000040000), SsSize: proto.Uint64(0x8000),
				SsFlags: proto.Uint32(0)},
		},
	}
	got := touchesOf(entry)
	if want := []uint64{area + 32, 0x7f0000048000 - redZone,
		0x7f0000048000 - redZone - signalFrame}; !slices.Equal(got[byKernel], want) {
		t.Errorf("by the kernel: %x, want %x", got[byKernel], want)
	}
	if !slices.Contains(got[byFirst], stack) || !slices.Contains(got[byFirst], area) ||
		!slices.Contains(got[byRegister], 0x7f0000030000) {
		t.Errorf("by the first instructions: %x, registers %x", got[byFirst], got[byRegister])
	}
	if ended := touchesOf(&core.CoreEntry{}); len(slices.Concat(ended[:]...)) > 0 {
		t.Errorf("one that has ended touches %x", ended)
	}
}

func FuzzTouched(f *testing.F) {
	stack := uint64(1 << 40)
	entry, err := proto.Marshal(&core.CoreEntry{
		Mtype: core.CoreEntryMarch(3).Enum(),
		TiAarch64: &core_aarch64.ThreadInfoAarch64{
			ClearTidAddr: &stack, Tls: &stack,
			Gpregs: &core_aarch64.UserAarch64RegsEntry{Sp: &stack, Pc: &stack, Pstate: &stack},
			Fpsimd: &core_aarch64.UserAarch64FpsimdContextEntry{Fpsr: proto.Uint32(0), Fpcr: proto.Uint32(0)},
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	image := binary.LittleEndian.AppendUint32(nil, imageCommon)
	image = binary.LittleEndian.AppendUint32(image, imageCore)
	f.Add(append(binary.LittleEndian.AppendUint32(image, uint32(len(entry))), entry...))
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = parseEntries(bytes.NewReader(data), imageCore, func(data []byte) error {
			var entry core.CoreEntry
			if err := proto.Unmarshal(data, &entry); err != nil {
				return err
			}
			touchesOf(&entry)
			return nil
		})
	})
}
