package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/patience"
)

// trialLimit is how long the whole trial may take; it takes about half a second if everything works.
var trialLimit = patience.Limit{Still: 30 * time.Second, Most: 10 * time.Minute}

// Trial is the result of the real trial.
type Trial struct {
	Result  TrialResult `json:"result"`
	Seconds float64     `json:"seconds"`
	Steps   []Step      `json:"steps"`
	Error   string      `json:"error,omitempty"`
	Advice  *Advice     `json:"advice,omitempty"`
}

// TrialResult says whether the trial could run and how it ended.
type TrialResult string

// The possible results of a trial.
const (
	Passed TrialResult = "passed"
	Failed TrialResult = "failed"
	NotRun TrialResult = "not-run" // a requirement of the trial is missing
)

// Step of the trial and how long it took.
type Step struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// trial is one run of the real trial: a container that answers on a TCP connection is checkpointed and
// restored, and must continue to answer on it.
type trial struct {
	*workplace
	runtime    runtimeTool
	namespace  *namespace
	connection net.Conn
	answers    *bufio.Reader
	asked      int
}

// runTrial runs the trial with these tools; program runs in the container (and contains ServeTrial). It
// works in a directory of its own in state and removes everything again, including the leftovers of a trial
// that was killed.
func runTrial(ctx context.Context, tools tools, program []string, state string) (result Trial) {
	ctx, cancel := trialLimit.For(ctx, "runc", patience.Programs("runc", "criu"))
	defer cancel()
	start := time.Now()
	t, err := newTrial(ctx, tools, program, state)
	if err != nil {
		return failedTrial(err, "")
	}
	result = t.steps(ctx)
	if err := t.close(); err != nil && result.Result == Passed {
		result = failedTrial(fmt.Errorf("clean up: %w", err), "")
	}
	result.Seconds = time.Since(start).Seconds()
	return result
}

func (t *trial) steps(ctx context.Context) Trial {
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"start", t.start}, {"connect", t.connect}, {"checkpoint", t.checkpoint}, {"restore", t.restore},
		{"answer", t.ask},
	}
	result := Trial{Result: Passed}
	for _, step := range steps {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			failed := failedTrial(fmt.Errorf("%s: %w", step.name, err), t.criuLog(step.name))
			failed.Steps = result.Steps
			return failed
		}
		result.Steps = append(result.Steps, Step{step.name, time.Since(began).Seconds()})
	}
	return result
}

func newTrial(ctx context.Context, tools tools, program []string, state string) (_ *trial, err error) {
	place, err := openWorkplace(ctx, state)
	if err != nil {
		return nil, err
	}
	t := &trial{workplace: place}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	// The container of a trial that was killed, if there is one; its state is in the directory.
	t.runtime = newRuntimeTool(tools, place.directory)
	t.runtime.remove(place.container)
	if err := place.make(); err != nil {
		return nil, err
	}
	if err := t.runtime.prepare(tools); err != nil {
		return nil, err
	}
	if t.namespace, err = newNamespace(); err != nil {
		return nil, err
	}
	// Nothing else can reach the namespace, so nothing has to be locked out of it; migrations do the same.
	criuConfig := filepath.Join(place.directory, "criu.conf")
	if err := os.WriteFile(criuConfig, []byte("network-lock skip\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write the trial's CRIU configuration: %w", err)
	}
	return t, writeBundle(place.directory, program,
		trialSpec(program[1:], place.container, t.namespace.path, criuConfig))
}

func (t *trial) start(ctx context.Context) error {
	return t.runtime.run(ctx, "run", "--detach", "--bundle", t.directory, t.container)
}

// connect waits until the server listens, opens the connection and sends the first line.
func (t *trial) connect(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := t.namespace.do(func() (err error) {
			dialer := net.Dialer{Timeout: time.Second}
			dialer.SetMultipathTCP(false)
			t.connection, err = dialer.DialContext(ctx, "tcp4", trialAddress)
			return err
		})
		if err == nil {
			t.answers = bufio.NewReader(t.connection)
			return t.ask(ctx)
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the program in the container never listened: %w", err)
		case <-tick.C:
		}
	}
}

func (t *trial) checkpoint(ctx context.Context) error {
	return t.runtime.run(ctx, append([]string{"checkpoint"}, t.criuOptions()...)...)
}

func (t *trial) restore(ctx context.Context) error {
	return t.runtime.run(ctx, append([]string{"restore", "--detach", "--bundle", t.directory},
		t.criuOptions()...)...)
}

// criuOptions are the same for both directions. CRIU leaves cgroups to runc, as in a migration: it then
// need not see all of their hierarchies, which it cannot on a node of the lab.
func (t *trial) criuOptions() []string {
	return []string{
		"--tcp-established", "--manage-cgroups-mode", "ignore",
		"--image-path", filepath.Join(t.directory, "images"), "--work-path", t.directory, t.container,
	}
}

// ask sends a line and expects the number of lines sent so far.
func (t *trial) ask(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = t.connection.SetDeadline(time.Now()) })()
	t.asked++
	if _, err := fmt.Fprintln(t.connection, "?"); err != nil {
		return fmt.Errorf("ask the container on its connection: %w", err)
	}
	var answer int
	if _, err := fmt.Fscanln(t.answers, &answer); err != nil {
		return fmt.Errorf("hear from the container on its connection: %w", err)
	}
	if answer != t.asked {
		return fmt.Errorf("the container answered %d to question %d: its memory is not what it was", answer,
			t.asked)
	}
	return nil
}

// close removes everything that the trial made.
func (t *trial) close() error {
	if t.connection != nil {
		t.connection.Close()
	}
	t.runtime.remove(t.container)
	if t.namespace != nil {
		t.namespace.close()
	}
	return t.workplace.close()
}
