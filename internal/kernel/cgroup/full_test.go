package cgroup

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

// contextSwitches waits until a group's only process sleeps, and returns its number of context switches,
// which grows when it is frozen.
func contextSwitches(t *testing.T, group *Cgroup) string {
	t.Helper()
	pids, err := group.Procs()
	kerneltest.Must(t, err)
	if len(pids) != 1 {
		t.Fatalf("processes %v, want one", pids)
	}
	for before, deadline := "", time.Now().Add(10*time.Second); ; time.Sleep(time.Millisecond) {
		state, err := kernel.ReadProcess(pids[0])
		kerneltest.Must(t, err)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[0]))
		kerneltest.Must(t, err)
		_, now, _ := strings.Cut(string(status), "voluntary_ctxt_switches:")
		if now == before && state.State == 'S' {
			return strings.Join(strings.Fields(now), " ")
		}
		if before = now; time.Now().After(deadline) {
			t.Fatalf("it does not sleep: %c", state.State)
		}
	}
}

// TestFreezeToMoveFull checks that a process that has used up its limit of descriptors is frozen only when
// that is over. Until then the error names the process, and the group runs on.
func TestFreezeToMoveFull(t *testing.T) {
	const script = "read begin; ulimit -S -n 3; echo full; read more; ulimit -S -n 20; echo open; read end"
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			group, out, in := startIn(t, mount, "sh", "-c", script)
			said := bufio.NewReader(out)
			line := func(want string) {
				t.Helper()
				if got, err := said.ReadString('\n'); err != nil || got != want {
					t.Fatalf("it says %q, %v, want %q", got, err, want)
				}
			}
			tell := func() {
				_, err := io.WriteString(in, "\n")
				kerneltest.Must(t, err)
			}
			tell()
			line("full\n")
			switches := contextSwitches(t, group)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := group.FreezeToMove(ctx)
			if now := contextSwitches(t, group); now != switches {
				t.Errorf("it was stopped meanwhile: %s, was %s", now, switches)
			}
			pids, listed := group.Procs()
			kerneltest.Must(t, listed)
			for _, want := range []string{
				" (sh) has no free descriptor below its limit (RLIMIT_NOFILE 3)",
				"; try again when the process",
				fmt.Sprintf("prlimit --pid %d --nofile=67:", pids[0]),
			} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
			// The script has a hard limit as before, and so does not look like sshd's sandbox.
			if full, is := UsedUp(pids[0]); !is || full.Limit != 3 || full.Sandboxed ||
				full.Age > time.Hour {
				t.Errorf("%+v, %t", full, is)
			}
			if frozen, err := group.ToldToFreeze(); err != nil || frozen {
				t.Errorf("it is to stay frozen: %v, %v", frozen, err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := group.FreezeToMove(t.Context())
				done <- err
			}()
			tell()
			kerneltest.Must(t, <-done)
			if found, err := group.fullProcesses(); err != nil || len(found) > 0 {
				t.Errorf("frozen while %v: %v", found, err)
			}
			kerneltest.Must(t, group.Thaw())
			line("open\n")
			if full, is := UsedUp(pids[0]); is {
				t.Errorf("it is over, and %+v", full)
			}
		})
	}
}
