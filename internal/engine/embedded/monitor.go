package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/embedded/output"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// MonitorCommand is the hidden command of this program that becomes a container's monitor: see Monitor.
const MonitorCommand = "container-monitor"

// reportFD is the descriptor to which the monitor writes reports, one JSON object per line, for the process
// that started it.
const reportFD = 3

// job is a monitor's task.
type job struct {
	ID       string      `json:"id"`
	StateDir string      `json:"state_dir"`
	RunDir   string      `json:"run_dir"`
	Cgroup   string      `json:"cgroup"`
	Runc     string      `json:"runc"`
	Terminal bool        `json:"terminal"`
	Restore  *restoreJob `json:"restore,omitempty"` // nil: start the container anew
	// Attended: nothing may be started for an agent that is gone. A living agent reads reports.
	Attended bool `json:"attended,omitempty"`
}

// restoreJob is what `runc restore` needs besides the bundle.
type restoreJob struct {
	Environment []string `json:"environment"`
	Images      string   `json:"images"`
	Work        string   `json:"work"`
}

// report tells the process that started a monitor about its progress.
type report struct {
	Waiting bool   `json:"waiting,omitempty"` // `runc restore` was started
	PID     int    `json:"pid,omitempty"`     // the container runs
	Error   string `json:"error,omitempty"`   // the container does not run, and the monitor ends
}

// monitor is the small process that every running container has. It owns the container's standard output
// and its log, is the parent that collects its exit code, and survives the agent.
type monitor struct {
	job   job
	files container
	runc  runc
	stdio *output.Output
	state liveState
	quiet atomic.Bool // the container is being destroyed: its end is no event
}

// Monitor is the main function of a container's monitor. Its argument is the path of its job. It
// returns when the container has ended, with the exit code of the monitor itself.
func Monitor(args []string) int {
	reports := os.NewFile(reportFD, "reports")
	m, err := newMonitor(args)
	if err == nil {
		err = kernel.NoCoreDump()
	}
	if err == nil {
		err = m.run(json.NewEncoder(reports))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "godwit container monitor: %v\n", err)
		_ = json.NewEncoder(reports).Encode(report{Error: err.Error()}) // the reader may be gone
		return 1
	}
	return 0
}

func newMonitor(args []string) (*monitor, error) {
	if len(args) != 1 {
		return nil, errors.New("must be started with the path of one job")
	}
	var j job
	if err := durable.Load(args[0], &j); err != nil {
		return nil, err
	}
	if !idPattern.MatchString(j.ID) {
		return nil, fmt.Errorf("job %s is not for a container: id %.80q", args[0], j.ID)
	}
	p := paths{state: j.StateDir, run: j.RunDir, group: j.Cgroup}
	return &monitor{job: j, files: p.of(j.ID), runc: runc{path: j.Runc, root: p.runcRoot()}}, nil
}

// run makes the container's processes and stays until they have ended.
func (m *monitor) run(reports *json.Encoder) error {
	// The container's first process loses its parent when runc ends, and becomes this process's child.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	var err error
	if m.stdio, err = output.Open(output.Files{Log: m.files.log(), Console: m.files.console()},
		m.job.Terminal); err != nil {
		return err
	}
	defer m.stdio.Close()
	if m.state.Monitor, err = checkpoint.Identify(os.Getpid()); err != nil {
		return err
	}
	m.state.Stdio = m.stdio.Names
	if err := durable.Save(m.files.runtime(), m.state); err != nil {
		return err
	}
	if err := m.serve(); err != nil {
		return err
	}
	switch {
	case m.job.Restore != nil:
		err = m.restore(reports)
	case m.job.Attended:
		// Anybody who looks from now on finds this process, and ends it. If nobody reads reports, there is
		// nobody for whom to start the container.
		if err = reports.Encode(report{Waiting: true}); err == nil {
			err = m.start()
		}
	default:
		err = m.start()
	}
	if err != nil {
		return err
	}
	began := time.Now()
	_ = reports.Encode(report{PID: m.state.Init.PID}) // the reader may be gone; the container stays
	return m.finish(m.collect(), began)
}

// start makes the container from its bundle. If that fails, the container's state is the same as before:
// created, or exited.
func (m *monitor) start() error {
	var was record
	if err := durable.Load(m.files.record(), &was); err != nil {
		return err
	}
	args := []string{"create", "--bundle", m.files.dir(), "--pid-file", m.files.pidFile()}
	if err := m.callRunc(nil, args); err != nil {
		return err
	}
	if err := m.adoptInit(); err != nil {
		return errors.Join(err, m.clean())
	}
	if err := durable.Save(m.files.record(), record{State: engine.Running, Started: time.Now()}); err != nil {
		return errors.Join(err, m.clean())
	}
	err := m.stdio.Follow()
	if err == nil {
		err = m.runc.run(context.Background(), m.files.runcLog(), "start", m.job.ID)
	}
	if err != nil {
		return errors.Join(err, m.clean(), durable.Save(m.files.record(), was))
	}
	m.awaitProgram()
	return nil
}

// awaitProgram waits until the container's first process no longer runs runc: `runc start` ends shortly
// before that, and meanwhile the process shows runc's properties, not the container's. The wait is a
// nicety, so it is bounded.
func (m *monitor) awaitProgram() {
	const patience, pause, inRunc = 2 * time.Second, time.Millisecond, "runc:[2:INIT]" // libcontainer/nsenter
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(pause) {
		process, err := kernel.ReadProcess(m.state.Init.PID)
		if err != nil || process.Name != inRunc {
			return
		}
	}
}

// restore makes the container from images. runc ends only after they have arrived: until then it waits in
// the restore proxy of package criu.
func (m *monitor) restore(reports *json.Encoder) error {
	r := m.job.Restore
	args := []string{
		"restore", "--detach", "--bundle", m.files.dir(), "--pid-file", m.files.pidFile(), "--image-path",
		r.Images,
		"--work-path", r.Work, "--tcp-established", "--file-locks", "--manage-cgroups-mode", "ignore",
	}
	waiting := func() { _ = reports.Encode(report{Waiting: true}) }
	if err := m.callRuncThen(r.Environment, args, waiting); err != nil {
		return err
	}
	if err := m.adoptInit(); err != nil {
		return errors.Join(err, m.clean())
	}
	// The log arrived with the container's private files, so it can only be opened now.
	if err := m.stdio.Follow(); err != nil {
		return errors.Join(err, m.clean())
	}
	return durable.Save(m.files.record(), record{State: engine.Running, Started: time.Now()})
}

func (m *monitor) callRunc(env, args []string) error { return m.callRuncThen(env, args, func() {}) }

// callRuncThen calls runc with the container's standard input and output; it calls started when runc runs.
func (m *monitor) callRuncThen(env, args []string, started func()) error {
	if m.job.Terminal {
		args = append(args, "--console-socket", m.files.console())
	}
	cmd := m.runc.command(context.Background(), m.files.runcLog(), append(args, m.job.ID)...)
	if !m.job.Terminal { // otherwise /dev/null: the container gets its terminal from runc
		cmd.Stdout, cmd.Stderr = m.stdio.Stdout, m.stdio.Stderr
	}
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start runc: %w", err)
	}
	started()
	if err := cmd.Wait(); err != nil {
		return m.explain(args[0], err)
	}
	return m.stdio.HandOver()
}

// explain adds runc's own reason to an error, or its output on the container's stderr if there is no
// reason.
func (m *monitor) explain(verb string, err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("wait for runc %s: %w", verb, err)
	}
	return runcError(verb, m.files.runcLog(), err)
}

// adoptInit finds the container's first process, which runc has left to this process.
func (m *monitor) adoptInit() error {
	data, err := os.ReadFile(m.files.pidFile())
	if err != nil {
		return fmt.Errorf("read the container's pid: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 0 {
		return fmt.Errorf("runc wrote %.20q as the container's pid", data)
	}
	if m.state.Init, err = checkpoint.Identify(pid); err != nil {
		return err
	}
	return durable.Save(m.files.runtime(), m.state)
}

// collect waits for the container's first process and returns its exit code as a shell would.
func (m *monitor) collect() int {
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(m.state.Init.PID, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		switch {
		case err != nil:
			return exitUnknown
		case status.Signaled():
			return 128 + int(status.Signal())
		}
		return status.ExitStatus()
	}
}

// finish records the container's end, when nothing of it is left in the kernel. The monotonic clock of
// began says how long it ran.
func (m *monitor) finish(code int, began time.Time) error {
	finished := time.Now()
	logErr := m.stdio.Finish()
	if m.quiet.Load() {
		return nil
	}
	var was record
	if err := durable.Load(m.files.record(), &was); err != nil {
		return errors.Join(logErr, err)
	}
	was.State, was.Finished, was.ExitCode, was.RanSeconds = engine.Exited, finished, code,
		finished.Sub(began).Seconds()
	return errors.Join(logErr, m.clean(), keepLoss(m.files), durable.Save(m.files.record(), was),
		os.RemoveAll(m.files.runDir()))
}

// clean removes the remaining processes of the container, its cgroup and its mounts.
func (m *monitor) clean() error {
	return sweep(context.Background(), m.runc, m.files)
}

// keepLoss keeps the report on a container that was killed because its memory could not be completed. The
// report explains the container's end.
func keepLoss(place container) error {
	report, err := pager.ReadReport(place.memory())
	if err != nil || report.State != memory.FillLost {
		return err
	}
	return durable.Save(place.lost(), report)
}
