// Command suite runs `go test` with a limit on the time that all of it may take, and tells at the end what a reader of the
// last lines of a log needs: what was slow, what was running when the limit came, and what failed, with its messages.
// scripts/test.sh is how it is called. It knows nothing of Godwit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// cleanUpTime is how long tests that are told to end may take to remove what they have made.
const cleanUpTime = 30 * time.Second

func main() {
	limit := flag.Duration("limit", 20*time.Minute, "what all tests together may take")
	logPath := flag.String("log", "", "file for the whole output of all tests")
	flag.Parse()
	code, err := suite(*limit, *logPath, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
		code = 2
	}
	os.Exit(code)
}

// suite runs go test with arguments, and tells the exit code that follows.
func suite(limit time.Duration, logPath string, args []string) (int, error) {
	log, err := os.Create(logPath)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	interrupted, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(interrupted, limit, fmt.Errorf("the tests took longer than %s", limit))
	defer cancel()

	start := time.Now()
	r := newRecord(os.Stdout, log)
	failed := goTest(ctx, args, r)
	r.flush()
	stopped := context.Cause(ctx)
	if errors.Is(stopped, context.Canceled) {
		stopped = errors.New("interrupted")
	}
	s := summary{record: r, took: time.Since(start), log: logPath, stopped: stopped, now: time.Now()}
	s.write(os.Stdout)
	if failed == nil && stopped == nil && !r.failed() {
		return 0, nil
	}
	return 1, nil
}

// goTest runs go test and gives what it says to a record. When the context ends, all tests are told to end.
func goTest(ctx context.Context, args []string, r *record) error {
	// Not CommandContext: it would kill go and leave the tests, which are processes of their own.
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	out, to := io.Pipe()
	cmd.Stdout, cmd.Stderr = to, os.Stderr
	cmd.WaitDelay = cleanUpTime // for what still holds the output when go has ended
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		ended <- errors.Join(err, to.Close())
	}()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-ctx.Done():
			endGroup(cmd.Process.Pid, over)
		case <-over:
		}
	}()
	err := r.read(out)
	return errors.Join(err, <-ended)
}

// endGroup asks a process group to end, and ends it if it does not.
func endGroup(group int, over <-chan struct{}) {
	_ = unix.Kill(-group, unix.SIGTERM) // it may have ended just now
	select {
	case <-over:
	case <-time.After(cleanUpTime):
		_ = unix.Kill(-group, unix.SIGKILL)
	}
}
