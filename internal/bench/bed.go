package bench

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
	// benchDir is where Godwit's competitors keep their files in a node: in memory, and private to the
	// node.
	benchDir = "/run/godwit-bench"
	program  = "godwit"     // in a node's PATH
	helper   = "godwit-lab" // in a node's PATH, too
)

// nodes are the two nodes between which containers move.
var nodes = [...]string{"a", "b"}

// usersNode is a third node. A user of a container on it is equally near to both nodes, and takes no
// bandwidth from the link between them.
const usersNode = "c"

// other returns the node to which a container moves from this one.
func other(node string) string {
	if node == nodes[0] {
		return nodes[1]
	}
	return nodes[0]
}

// bed is the lab in which everything is measured.
type bed struct {
	lab  *lab.Lab
	criu criu.Tool
	runc string
	// bandwidth of the link, in bytes per second.
	bandwidth float64
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

// command returns a command in a node that finds the same CRIU as Godwit.
func (b *bed) command(ctx context.Context, node string, args []string) (*exec.Cmd, error) {
	cmd, err := b.lab.Command(ctx, node, args...)
	if err != nil {
		return nil, err
	}
	// The user's variables for Podman would lead it out of the node.
	inherited := func(v string) bool {
		return strings.HasPrefix(v, "CONTAINERS_") ||
			strings.HasPrefix(v, "PATH=")
	}
	path := "PATH=" + filepath.Dir(b.criu.Path) + ":" + os.Getenv("PATH")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), inherited), path)
	return cmd, nil
}

// exec runs a command in a node and returns its output.
func (b *bed) exec(ctx context.Context, node string, args ...string) (string, error) {
	cmd, err := b.command(ctx, node, args)
	if err != nil {
		return "", err
	}
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(complaints.String())
		return out.String(), fmt.Errorf("node %s: %s: %w: %s", node, strings.Join(args, " "), err,
			text[max(0, len(text)-maxErrorText):])
	}
	return out.String(), nil
}

// detached runs a command that leaves a container running, so its input and output must be /dev/null. The
// reason of a failure is in its log, a file of the node.
func (b *bed) detached(ctx context.Context, node, log string, args ...string) error {
	cmd, err := b.command(ctx, node, args)
	if err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		path, _ := b.path(node, log) // the command has just run there
		return fmt.Errorf("node %s: %s: %w%s", node, strings.Join(args, " "), err, tail(path))
	}
	return nil
}

// all runs commands one after the other.
func (b *bed) all(ctx context.Context, node string, commands ...[]string) error {
	for _, command := range commands {
		if _, err := b.exec(ctx, node, command...); err != nil {
			return err
		}
	}
	return nil
}

// time runs a command in a node and returns how long it took there, in seconds.
func (b *bed) time(ctx context.Context, node string, args ...string) (float64, error) {
	out, err := b.exec(ctx, node, append([]string{helper, "bench", "time", "--"}, args...)...)
	if err != nil {
		return 0, err
	}
	seconds, err := parseTimed(out)
	if err != nil {
		return 0, fmt.Errorf("node %s: %w", node, err)
	}
	return seconds, nil
}

// path returns where this program finds a file of a node.
func (b *bed) path(node, file string) (string, error) {
	root, err := b.lab.Root(node)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, file), nil
}

// empty makes an empty directory in a node.
func (b *bed) empty(node, dir string) error {
	path, err := b.path(node, dir)
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

func (b *bed) write(node, file string, data []byte) error {
	path, err := b.path(node, file)
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

// sizeOf returns the size of a file of a node, or the total size of the files in a directory.
func (b *bed) sizeOf(node, path string) (float64, error) {
	path, err := b.path(node, path)
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
