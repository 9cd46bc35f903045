package embedded

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/godwit/godwit/internal/engine/mounts"
)

// runc calls the OCI runtime. Its directory holds its own state of the containers.
type runc struct {
	path string
	root string
}

// command makes a runc command line that writes its own messages to log (as JSON), apart from the
// container's output.
func (r runc) command(ctx context.Context, log string, args ...string) *exec.Cmd {
	all := append([]string{"--root", r.root, "--log", log, "--log-format", "json"}, args...)
	return exec.CommandContext(ctx, r.path, all...)
}

// run calls runc and waits. Its error carries runc's reason.
func (r runc) run(ctx context.Context, log string, args ...string) error {
	if err := r.command(ctx, log, args...).Run(); err != nil {
		return runcError(args[0], log, err)
	}
	return nil
}

// runcError explains why a runc command failed, from its log.
func runcError(verb, log string, err error) error {
	if reason := lastRuncError(log); reason != "" {
		return fmt.Errorf("runc %s: %s (%w)", verb, reason, err)
	}
	return fmt.Errorf("runc %s: %w", verb, err)
}

// lastRuncError returns the last error in a log of runc; "" if there is none.
func lastRuncError(log string) string {
	data, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	reason := ""
	scanner := bufio.NewScanner(bytes.NewReader(data))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var line struct{ Level, Msg string }
		if json.Unmarshal(scanner.Bytes(), &line) == nil && (line.Level == "error" || line.Level == "fatal") {
			reason = strings.TrimSpace(line.Msg)
		}
	}
	return reason
}

// forget removes runc's state of a container whose processes are gone, and the mounts that a killed restore
// leaves there (criu-root). It does not use runc, because runc would stop at a half-written state.
func (r runc) forget(id string) error {
	dir := filepath.Join(r.root, id)
	if err := errors.Join(mounts.UnmountBelow(dir)); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove runc's state of %s: %w", id, err)
	}
	return nil
}
