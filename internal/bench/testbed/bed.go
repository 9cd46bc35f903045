package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/lab"
)

const (
	// BenchDir is where Godwit's competitors keep their files in a node: in memory, and private to the
	// node.
	BenchDir = "/run/godwit-bench"
	// Program is the product, in a node's PATH.
	Program = "godwit"
	// Helper is the lab's program, in a node's PATH, too.
	Helper = "godwit-lab"
)

// Nodes are the two nodes between which containers move.
var Nodes = [...]string{"a", "b"}

// UsersNode is a third node. A user of a container on it is equally near to both nodes, and takes no
// bandwidth from the link between them.
const UsersNode = "c"

// Other returns the node to which a container moves from this one.
func Other(node string) string {
	if node == Nodes[0] {
		return Nodes[1]
	}
	return Nodes[0]
}

// Bed is the lab in which everything is measured.
type Bed struct {
	Lab  *lab.Lab
	CRIU criu.Tool
	Runc string
	// Bandwidth of the link, in bytes per second.
	Bandwidth float64
}

// findRunc looks in the same places as Godwit, so that all ways use the same runc.
func findRunc() (string, error) {
	for _, path := range []string{os.Getenv("GODWIT_RUNC"), "/opt/godwit/bin/runc", "runc"} {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
	}
	return "", errors.New("find runc: not in GODWIT_RUNC, /opt/godwit/bin or PATH; \"godwit doctor\" " +
		"tells how to get it")
}

// Command returns a command in a node that finds the same CRIU as Godwit.
func (b *Bed) Command(ctx context.Context, node string, args []string) (*exec.Cmd, error) {
	cmd, err := b.Lab.Command(ctx, node, args...)
	if err != nil {
		return nil, err
	}
	// The user's variables for Podman would lead it out of the node.
	inherited := func(v string) bool {
		return strings.HasPrefix(v, "CONTAINERS_") ||
			strings.HasPrefix(v, "PATH=")
	}
	path := "PATH=" + filepath.Dir(b.CRIU.Path) + ":" + os.Getenv("PATH")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), inherited), path)
	return cmd, nil
}

// Exec runs a command in a node and returns its output.
func (b *Bed) Exec(ctx context.Context, node string, args ...string) (string, error) {
	cmd, err := b.Command(ctx, node, args)
	if err != nil {
		return "", err
	}
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(complaints.String())
		return out.String(), fmt.Errorf("node %s: %s: %w: %s", node, strings.Join(args, " "), err,
			text[max(0, len(text)-MaxErrorText):])
	}
	return out.String(), nil
}

// Detached runs a command that leaves a container running, so its input and output must be /dev/null. The
// reason of a failure is in its log, a file of the node.
func (b *Bed) Detached(ctx context.Context, node, log string, args ...string) error {
	cmd, err := b.Command(ctx, node, args)
	if err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		path, _ := b.Path(node, log) // the command has just run there
		return fmt.Errorf("node %s: %s: %w%s", node, strings.Join(args, " "), err, Tail(path))
	}
	return nil
}

// All runs commands one after the other.
func (b *Bed) All(ctx context.Context, node string, commands ...[]string) error {
	for _, command := range commands {
		if _, err := b.Exec(ctx, node, command...); err != nil {
			return err
		}
	}
	return nil
}

// Time runs a command in a node and returns how long it took there, in seconds.
func (b *Bed) Time(ctx context.Context, node string, args ...string) (float64, error) {
	out, err := b.Exec(ctx, node, append([]string{Helper, "bench", "time", "--"}, args...)...)
	if err != nil {
		return 0, err
	}
	seconds, err := ParseTimed(out)
	if err != nil {
		return 0, fmt.Errorf("node %s: %w", node, err)
	}
	return seconds, nil
}

// Path returns where this program finds a file of a node.
func (b *Bed) Path(node, file string) (string, error) {
	root, err := b.Lab.Root(node)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, file), nil
}

// Empty makes an empty directory in a node.
func (b *Bed) Empty(node, dir string) error {
	path, err := b.Path(node, dir)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("empty directory on node %s: %w", node, err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("empty directory on node %s: %w", node, err)
	}
	return nil
}

// Write writes a file of a node.
func (b *Bed) Write(node, file string, data []byte) error {
	path, err := b.Path(node, file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("file on node %s: %w", node, err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return fmt.Errorf("file on node %s: %w", node, err)
	}
	return nil
}

// SizeOf returns the size of a file of a node, or the total size of the files in a directory.
func (b *Bed) SizeOf(node, path string) (float64, error) {
	path, err := b.Path(node, path)
	if err != nil {
		return 0, err
	}
	var sum int64
	err = filepath.WalkDir(path, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("size of what is sent: %w", err)
	}
	return float64(sum), nil
}

// Has reports whether a node has a file.
func (b *Bed) Has(node, path string) bool {
	full, err := b.Path(node, path)
	return err == nil && Exists(full)
}

// Exists reports whether there is a file.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Mounted reports whether there is a mount at a path of a node.
func (b *Bed) Mounted(node, at string) bool {
	pid, err := b.Lab.PID(node)
	if err != nil {
		return false
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	return err == nil && strings.Contains(string(mounts), " "+at+" ")
}

// EndAll ends programs that would run for ever.
func EndAll(what string, running []*exec.Cmd) error {
	var failed error
	for _, cmd := range running {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			failed = errors.Join(failed, fmt.Errorf("end %s: %w", what, err))
		}
		_ = cmd.Wait() // it was killed
	}
	return failed
}
