package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab/labtest"
)

// TestSecrets moves a container with a password in its environment, its labels and its command. Its node
// must know the password; no other file of either node has it when the migration is over, and no log ever
// had it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const name, secret = "secrets", "swordfish-7fe1"
	call := func(node string, args ...string) {
		t.Helper()
		if out, err := godwit(t.Context(), node, args...); err != nil || out.code != 0 {
			t.Fatalf("%v: %v, exit code %d: %s", args, err, out.code, out.stderr)
		}
	}
	call("a", "run", "-d", "--name", name, "-e", "PASSWORD="+secret, "--label", "key="+secret, image,
		"/bin/sleep", "1000.7")
	at := "a"
	defer func() { call(at, "rm", "--force", name) }()
	for _, mode := range []string{"cold", "pre-copy"} {
		to := other(at)
		call(at, "migrate", "--mode", mode, name, to)
		at = to
		for _, node := range nodes() {
			labtest.Within(patience, func() bool { return len(having(t, node, secret)) == 0 })
			if found := having(t, node, secret); len(found) > 0 {
				t.Errorf("after a move in mode %s to %s the password is on %s in %q", mode, to, node, found)
			}
		}
	}
}

// other returns the node to which tests move a container from this one.
func other(node string) string {
	if node == "a" {
		return "b"
	}
	return "a"
}

// having lists files of a node's agent with a text in them, except those of containers that are there.
func having(t *testing.T, node, text string) (found []string) {
	t.Helper()
	root, _, err := place(node)
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(root, "var/lib/godwit")
	look := func(path string) {
		// Files that disappear meanwhile do not count.
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(text)) {
			found = append(found, strings.TrimPrefix(path, root))
		}
	}
	err = filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() &&
			(path == filepath.Join(state, "containers") || path == filepath.Join(state, "images")) {
			return fs.SkipDir
		}
		if err == nil && entry.Type().IsRegular() {
			look(path)
		}
		return nil // files that disappear meanwhile
	})
	if err != nil {
		t.Fatal(err)
	}
	look(world.lab.AgentLog(node))
	return found
}
