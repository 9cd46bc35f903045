package lxc

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// ownRecord is our file in LXC's directory of a container. LXC removes it with the container, and does not copy it to others.
type ownRecord struct {
	ID string `json:"id"`
}

// identityOf is the id that a container has on every node. One that runs gets one. Error: engine.ErrNotFound if it has none:
// nobody has had to do with it yet.
func (e *Engine) identityOf(name string, runs bool) (string, error) {
	e.naming.Lock()
	defer e.naming.Unlock()
	path := filepath.Join(e.config.Path, name, ownName)
	var own ownRecord
	err := loadJSON(path, &own)
	if errors.Is(err, fs.ErrNotExist) && !runs {
		return "", fmt.Errorf("LXC container %s: %w: it does not run, and never did since Godwit is here", name, engine.ErrNotFound)
	}
	if errors.Is(err, fs.ErrNotExist) {
		var id [32]byte
		_, _ = rand.Read(id[:]) // never fails (crypto/rand)
		own.ID = hex.EncodeToString(id[:])
		err = saveJSON(path, own)
	}
	if err == nil && !idPattern.MatchString(own.ID) {
		err = fmt.Errorf("%s has no id", path)
	}
	return own.ID, err
}

// monitors are the names of the containers that have a monitor of LXC, which listens on an abstract socket.
func (e *Engine) monitors() (map[string]bool, error) {
	file, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("look for LXC's monitors: %w", err)
	}
	defer file.Close()
	found := map[string]bool{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		_, path, ok := strings.Cut(lines.Text(), "@"+e.config.Path+"/")
		name, isCommand := strings.CutSuffix(path, "/command")
		if ok && isCommand {
			found[name] = true
		}
	}
	return found, lines.Err()
}

// firstProcess asks LXC for the pid of a container's first process; 0 if it does not run.
func (e *Engine) firstProcess(ctx context.Context, name string) (int, error) {
	out, err := e.tool(ctx, "lxc-info", name, "-p", "-H")
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(out)
	if text == "" {
		return 0, nil
	}
	pid, err := strconv.Atoi(text)
	if err != nil || pid < 1 {
		return 0, fmt.Errorf("lxc-info says %.40q, want the pid of container %s", text, name)
	}
	return pid, nil
}

// saveJSON replaces a file so that a crash leaves the old or the new content.
func saveJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := kernel.WriteFileAtomic(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	return nil
}

// loadJSON reads a file that saveJSON wrote. A missing file is fs.ErrNotExist.
func loadJSON(path string, value any) error {
	text, err := readConfig(path) // bounded
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), value); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// exists tells whether a path is there. What cannot be found out counts as there.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// removeIfThere removes a file.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
