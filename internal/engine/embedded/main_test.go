package embedded

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory/pager"
)

// TestMain lets the test program act as the monitor and as CRIU's restore proxy, as the real program does.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "criu" {
		os.Exit(criu.ProxyMain(os.Args))
	}
	if len(os.Args) > 1 && os.Args[1] == MonitorCommand {
		os.Exit(Monitor(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == pager.Command {
		os.Exit(pager.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

const testLayer = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"

// testImages is an image store with one layer.
type testImages struct{ dir string }

func (i testImages) LayerPath(diffID string) (string, error) {
	if diffID != testLayer {
		return "", fmt.Errorf("no layer %s", diffID)
	}
	return i.dir, nil
}

// testNode is a node's directories and engine.
type testNode struct {
	*Engine
	t testing.TB
}

// shortDir makes a directory with a path short enough for unix sockets below it.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "g")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newTestNode(t testing.TB) *testNode {
	t.Helper()
	dir := shortDir(t)
	e, err := New(Config{StateDir: dir + "/s", RunDir: dir + "/r", Images: testImages{busyboxLayer(t)},
		Cgroup: "/godwit-test/" + filepath.Base(dir), State: "one"})
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{e, t}
	t.Cleanup(n.removeGroup)
	t.Cleanup(n.clean)
	return n
}

// clean removes all containers that a test has left.
func (n *testNode) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	all, err := n.List(ctx)
	if err != nil {
		n.t.Error(err)
	}
	for _, ctr := range all {
		id := ctr.Definition.ID
		if ctr.State == engine.Arriving {
			if err := n.Discard(ctx, id); err != nil {
				n.t.Error(err)
			}
			continue
		}
		if err := n.Resume(ctx, id); err != nil {
			n.t.Error(err)
		}
		if err := n.Remove(ctx, id, true); err != nil {
			n.t.Error(err)
		}
	}
	group, err := cgroup.Open(n.config.Cgroup)
	if err == nil {
		err = group.Remove()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Error(err)
	}
}

// removeGroup removes the parent cgroup of a node's containers.
func (n *testNode) removeGroup() {
	group, err := cgroup.Open(n.config.Cgroup)
	if err == nil {
		err = group.Remove()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Error(err)
	}
}

// busyboxLayer makes a layer with a busybox and other programs that tests need.
func busyboxLayer(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"bin", "etc", "tmp", "proc", "dev", "sys", "home/ann"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("/usr/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	names, err := exec.Command("/usr/bin/busybox", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		if name != "busybox" {
			if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	passwd := "root:x:0:0:root:/root:/bin/sh\nann:x:1001:1002:Ann:/home/ann:/bin/sh\n"
	group := "root:x:0:\nann:x:1002:\nstaff:x:50:ann\n"
	for name, content := range map[string]string{"etc/passwd": passwd, "etc/group": group} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// newNetns makes a network namespace with a loopback link, bound at a path.
func newNetns(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { // the thread keeps the namespace: it is not unlocked, and ends
		runtime.LockOSThread()
		done <- func() error {
			handle, err := netns.New()
			if err != nil {
				return err
			}
			defer handle.Close()
			if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w", out, err)
			}
			return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	return path
}

func newID(t testing.TB) string {
	t.Helper()
	var random [32]byte
	if _, err := rand.Read(random[:]); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(random[:])
}

func definition(t testing.TB, args ...string) engine.Definition {
	t.Helper()
	id := newID(t)
	return engine.Definition{
		ID: id, Name: "c-" + id[:8], Image: "busybox", Layers: []string{testLayer}, Args: args,
		Env: []string{"PATH=/bin"}, Created: time.Now(),
	}
}

// start creates and starts a container.
func (n *testNode) start(d engine.Definition) engine.Definition {
	n.t.Helper()
	ctx := n.t.Context()
	if err := n.Create(ctx, d, newNetns(n.t)); err != nil {
		n.t.Fatal(err)
	}
	if err := n.Start(ctx, d.ID); err != nil {
		n.t.Fatal(err)
	}
	return d
}

// output returns all output of a container.
func (n *testNode) output(id string) string {
	n.t.Helper()
	var out strings.Builder
	err := n.Logs(n.t.Context(), id, engine.LogOptions{Tail: -1}, func(e engine.LogEntry) error {
		out.Write(e.Data)
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return out.String()
}
