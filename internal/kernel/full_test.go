package kernel

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

// TestFreezeToMoveFull freezes a process that has used up its limit of descriptors only when that is over.
// While it is not, the error names the process, and the group runs on.
func TestFreezeToMoveFull(t *testing.T) {
	const script = "read begin; ulimit -S -n 3; echo full; read more; ulimit -S -n 20; echo open; read end"
	for version, mount := range freezers(t) {
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
				must(t, err)
			}
			tell()
			line("full\n")
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := group.FreezeToMove(ctx)
			want := "no free descriptor below its limit (RLIMIT_NOFILE 3)"
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
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
			must(t, <-done)
			if found, err := group.fullProcesses(); err != nil || len(found) > 0 {
				t.Errorf("frozen while %v: %v", found, err)
			}
			must(t, group.Thaw())
			line("open\n")
		})
	}
}
