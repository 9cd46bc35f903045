package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/embedded/account"
)

// execWaitDelay is how long to wait for output of a killed exec.
const execWaitDelay = 2 * time.Second

// execs runs further processes in running containers.
type execs struct {
	catalog *catalog
	runc    runc
}

// Exec runs a process in a running container and returns its exit code.
func (x *execs) Exec(ctx context.Context, id string, process engine.Exec) (int, error) {
	session, err := x.openExec(id, process)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(session.dir)
	return x.runExec(ctx, id, session, process)
}

// runExec runs a process whose description for runc has been written.
func (x *execs) runExec(
	ctx context.Context, id string, session execSession, process engine.Exec,
) (int, error) {
	pidFile := filepath.Join(session.dir, "pid")
	cmd := x.runc.command(ctx, session.log(),
		"exec", "--process", filepath.Join(session.dir, "process.json"), "--pid-file", pidFile, id)
	stderr := &withoutRunc{to: writerOrNull(process.Stderr), pidFile: pidFile}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = process.Stdin, writerOrNull(process.Stdout), stderr
	cmd.WaitDelay = execWaitDelay
	cmd.Cancel = func() error {
		// Killing runc alone would leave the process in the container. runc writes its PID when it already
		// runs.
		awaitExec(cmd.Process, pidFile)
		return errors.Join(killByFile(pidFile), cmd.Process.Kill())
	}
	err := cmd.Run()
	if ctx.Err() != nil {
		return 0, fmt.Errorf("exec in container %.12s: %w", id, ctx.Err())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return 0, fmt.Errorf("exec in container %.12s: %w", id, err)
	}
	// runc has no exit code of its own: 255 may be that of the process.
	if reason := lastRuncError(session.log()); reason != "" && !durable.Exists(pidFile) {
		return 0, fmt.Errorf("exec %q in container %.12s: %s", process.Args[0], id, reason)
	}
	return cmd.ProcessState.ExitCode(), stderr.end()
}

// execSession is one call of Exec. While its directory exists, the container cannot be moved.
type execSession struct{ dir string }

func (s execSession) log() string { return filepath.Join(s.dir, "log") }

// openExec checks that a process may run in a container, and writes its description for runc.
func (x *execs) openExec(id string, process engine.Exec) (execSession, error) {
	var none execSession
	if len(process.Args) == 0 {
		return none, errors.New("exec: no command was given")
	}
	defer x.catalog.lock(id)()
	files, err := x.catalog.find(id)
	if err != nil {
		return none, err
	}
	ctr, err := x.catalog.running(id)
	if err != nil {
		return none, err
	}
	if durable.Exists(files.departure()) {
		return none, fmt.Errorf("exec in container %s: %w: it is being moved", ctr.Definition.Name,
			engine.ErrBusy)
	}
	session, err := x.makeExec(files, ctr.Definition, process)
	if err != nil {
		return none, fmt.Errorf("exec in container %s: %w", ctr.Definition.Name, err)
	}
	return session, nil
}

// execSpec describes an additional process like the container's first one, with the caller's changes.
func (x *execs) execSpec(files container, d engine.Definition, process engine.Exec) (*specs.Process, error) {
	spec, err := loadSpec(files)
	if err != nil {
		return nil, err
	}
	user := process.User
	if user == "" {
		user = d.User
	}
	who, err := account.Resolve(files.rootfs(), user)
	if err != nil {
		return nil, err
	}
	d.Env = mergeEnvironment(d.Env, process.Env)
	d.Args, d.TTY = process.Args, false
	result := processOf(specInput{definition: d, user: who.User, home: who.Home})
	result.Cwd = spec.Process.Cwd
	if process.Dir != "" {
		if !path.IsAbs(process.Dir) {
			return nil, fmt.Errorf("working directory %.80q: must be an absolute path", process.Dir)
		}
		result.Cwd = process.Dir
	}
	return result, nil
}

// mergeEnvironment replaces variables of base by those of over with the same names.
func mergeEnvironment(base, over []string) []string {
	named := map[string]bool{}
	for _, variable := range over {
		name, _, _ := strings.Cut(variable, "=")
		named[name] = true
	}
	var merged []string
	for _, variable := range base {
		if name, _, _ := strings.Cut(variable, "="); !named[name] {
			merged = append(merged, variable)
		}
	}
	return append(merged, over...)
}

// execPatience is how long runc may take to start a process before it is killed.
const execPatience = 10 * time.Second

// awaitExec waits until runc has written the PID of the started process, or has ended.
func awaitExec(runc *os.Process, pidFile string) {
	for deadline := time.Now().Add(execPatience); time.Now().Before(deadline) &&
		!durable.Exists(pidFile); time.Sleep(time.Millisecond) {
		if errors.Is(runc.Signal(syscall.Signal(0)), os.ErrProcessDone) {
			return
		}
	}
}

// killByFile kills the process whose PID runc has written to a file, if it has.
func killByFile(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil // runc has not come that far
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 0 {
		return fmt.Errorf("%s does not hold a pid: %.20q", path, data)
	}
	process, err := checkpoint.Identify(pid)
	if err != nil {
		return nil // gone
	}
	return process.Kill()
}

func writerOrNull(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// makeExec writes runc's description of a process that is to run in a container.
func (x *execs) makeExec(place container, d engine.Definition, process engine.Exec) (execSession, error) {
	spec, err := x.execSpec(place, d, process)
	if err != nil {
		return execSession{}, err
	}
	dir, err := os.MkdirTemp(place.runDir(), "exec-")
	if err != nil {
		return execSession{}, err
	}
	return execSession{dir}, durable.Save(filepath.Join(dir, "process.json"), spec)
}
