package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

// startSpawner starts testdata/spawner in a group of its own.
func startSpawner(t *testing.T, mount, argument string) (*Cgroup, io.Reader) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "spawner")
	const source = "testdata/spawner/spawner.c"
	build := exec.Command("gcc", "-O1", "-static", "-pthread", "-o", program, source)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	group, said, begin := startIn(t, mount, program, argument)
	kerneltest.Must(t, begin.Close())
	return group, said
}

// startIn starts a program in a group of its own.
func startIn(t *testing.T, mount, program string, args ...string) (*Cgroup, io.Reader, io.WriteCloser) {
	t.Helper()
	dir := filepath.Join(mount, fmt.Sprintf("godwit-spawner-%d", os.Getpid()))
	kerneltest.Must(t, os.Mkdir(dir, 0o755))
	group, err := At(dir)
	kerneltest.Must(t, err)
	cmd := exec.Command(program, args...)
	said, err := cmd.StdoutPipe()
	kerneltest.Must(t, err)
	in, err := cmd.StdinPipe()
	kerneltest.Must(t, err)
	kerneltest.Must(t, cmd.Start())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := errors.Join(group.Kill(ctx), group.Thaw())
		_ = cmd.Wait() // it was killed
		if err := errors.Join(err, group.Remove()); err != nil {
			t.Error(err)
		}
	})
	kerneltest.Must(t, os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, cmd.Process.Pid), 0))
	return group, said, in
}

// TestFreezeToMoveSpawner freezes a program that constantly starts others, and checks that it is never
// caught waiting in vfork.
func TestFreezeToMoveSpawner(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			group, out := startSpawner(t, mount, "4")
			said := bufio.NewReader(out)
			lines := func(n int) {
				t.Helper()
				for range n {
					_, err := said.ReadString('\n')
					kerneltest.Must(t, err)
				}
			}
			lines(1)
			for caught := 0; caught == 0; { // until the check has certainly found some
				_, err := group.Freeze(t.Context())
				kerneltest.Must(t, err)
				found, err := group.vforks()
				kerneltest.Must(t, err)
				caught = len(found)
				kerneltest.Must(t, group.Thaw())
			}
			for range 20 {
				_, err := group.FreezeToMove(t.Context())
				kerneltest.Must(t, err)
				found, err := group.vforks()
				kerneltest.Must(t, err)
				if len(found) > 0 {
					t.Errorf("frozen while %+v", found)
				}
				kerneltest.Must(t, group.Thaw())
			}
			lines(2)
		})
	}
}

// TestFreezeToMoveStuck has a child that never calls execve. It checks that the error names the child, and
// that the group runs on.
func TestFreezeToMoveStuck(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			group, _ := startSpawner(t, mount, "stuck")
			for found := []vfork(nil); len(found) == 0; {
				var err error
				found, err = group.vforks()
				kerneltest.Must(t, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := group.FreezeToMove(ctx)
			if err == nil || !strings.Contains(err.Error(), "has not called execve") {
				t.Errorf("%v, want that a child has not called execve", err)
			}
			if frozen, err := group.ToldToFreeze(); err != nil || frozen {
				t.Errorf("it is to stay frozen: %v, %v", frozen, err)
			}
		})
	}
}
