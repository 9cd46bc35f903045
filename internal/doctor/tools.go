package doctor

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
	"time"

	"github.com/godwit/godwit/internal/patience"
)

// Prefix is where "godwit setup criu" installs CRIU and runc, and prefixBin where their programs are.
const (
	Prefix    = "/opt/godwit"
	prefixBin = Prefix + "/bin"
)

var errNotInstalled = errors.New("not installed")

// tools are the programs that the trial needs.
type tools struct {
	criu, runc string
}

// findTool looks for a program in the same places as every part of Godwit: environment, prefix, PATH.
func findTool(name, variable string) (string, error) {
	if path := os.Getenv(variable); path != "" {
		if err := executable(path); err != nil {
			return "", fmt.Errorf("%s (from %s): %w", path, variable, err)
		}
		return path, nil
	}
	if path := filepath.Join(prefixBin, name); executable(path) == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", errNotInstalled
	}
	return filepath.Abs(path)
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return errors.New("is not a program")
	}
	return nil
}

// runtimeTool is runc with its state in the trial's directory.
type runtimeTool struct {
	runc, directory string
	environment     []string
}

func newRuntimeTool(tools tools, directory string) runtimeTool {
	path := "PATH=" + filepath.Join(directory, "bin") + ":" + os.Getenv("PATH")
	return runtimeTool{runc: tools.runc, directory: directory, environment: append(os.Environ(), path)}
}

// prepare makes runc find the right CRIU: runc always takes the program "criu" in its PATH.
func (r runtimeTool) prepare(tools tools) error {
	bin := filepath.Join(r.directory, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return fmt.Errorf("make a directory for the trial's tools: %w", err)
	}
	if err := os.Symlink(tools.criu, filepath.Join(bin, "criu")); err != nil {
		return fmt.Errorf("make CRIU known to runc: %w", err)
	}
	return nil
}

// run runs runc. Its standard streams, which a container inherits, are /dev/null: CRIU could not dump a
// file of the host. runc's messages are in its log.
func (r runtimeTool) run(ctx context.Context, args ...string) error {
	log := filepath.Join(r.directory, "runc.log")
	_ = os.Remove(log) // of an earlier call
	args = append([]string{"--root", filepath.Join(r.directory, "runc"), "--log", log, "--log-format",
		"json"}, args...)
	command := exec.CommandContext(ctx, r.runc, args...)
	command.Env = r.environment
	err := command.Run()
	switch said := lastMessage(log); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("runc did not finish: %w", ctx.Err())
	case said != "":
		return fmt.Errorf("runc: %s", said)
	default:
		return fmt.Errorf("runc: %w", err)
	}
}

// removeLimit is how long runc may take to remove the container.
var removeLimit = patience.Limit{Still: 5 * time.Second, Most: time.Minute}

// remove deletes the container, running or not; a missing container is no error.
func (r runtimeTool) remove(name string) {
	// Not the trial's context: the container must go, even when the time is over or the user has
	// interrupted.
	ctx, cancel := removeLimit.For(context.Background(), "runc", patience.Programs("runc"))
	defer cancel()
	if _, err := os.Stat(filepath.Join(r.directory, "runc", name)); err != nil {
		return
	}
	_ = r.run(ctx, "delete", "--force", name)
}

// lastMessage returns the last error in runc's log.
func lastMessage(log string) string {
	content, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	last := ""
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(lines.Bytes(), &entry) == nil &&
			(entry.Level == "error" || entry.Level == "fatal") {
			// The second line names a log that is removed with the trial.
			last, _, _ = strings.Cut(entry.Msg, "\n")
		}
	}
	return last
}

// criuLog returns CRIU's errors in a step, one line each; empty if there are none.
func (t *trial) criuLog(step string) string {
	switch step {
	case "checkpoint":
		return criuErrors(filepath.Join(t.directory, "dump.log"))
	case "restore":
		return criuErrors(filepath.Join(t.directory, "restore.log"))
	}
	return ""
}

func criuErrors(log string) string {
	content, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	var found []string
	for line := range strings.Lines(string(content)) {
		at := strings.Index(line, "Error (")
		// Without CAP_SYS_RESOURCE every log has this one, and it is harmless.
		if at < 0 || strings.Contains(line, "RLIMIT_NOFILE") {
			continue
		}
		found = append(found, strings.TrimSpace(line[at:]))
	}
	const most = 5
	return strings.Join(found[:min(len(found), most)], "\n")
}
