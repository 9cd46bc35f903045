package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/network"
)

// createEarly makes runc restore the container when its engine starts it, and gives the engine the PID of
// the placeholder of its first process. The restore continues when the placeholder has ended: it is then a
// child of the future parent of the restored processes.
func (d handler) createEarly(job Job, args []string, pidFile string) error {
	if err := network.BlockNamespace(d.Network()); err != nil {
		return fmt.Errorf("block the network of the arriving container: %w", err)
	}
	restorer := exec.Command(job.Runc, args...)
	restorer.Env = append(os.Environ(), job.Env...)
	restorer.Stdin, restorer.Stdout, restorer.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := restorer.Start(); err != nil {
		return fmt.Errorf("run %s: %w", job.Runc, err)
	}
	over := make(chan struct{})
	go func() {
		_ = restorer.Wait() // it has written why it failed
		close(over)
	}()
	pid, err := criu.AwaitPlaceholder(d.Placeholder(), over)
	if err != nil || pidFile == "" {
		return err
	}
	return kernel.WriteFileAtomic(pidFile, []byte(strconv.Itoa(pid)), 0o644)
}

// startEarly lets the restore continue, and returns when the container runs.
func (d handler) startEarly(job Job) error {
	err := criu.StartRestored(context.Background(), d.Placeholder())
	if err == nil && !exists(job.Record) {
		err = errors.New("it was not restored")
	}
	if err != nil {
		return fmt.Errorf("start the container that arrives: %w", err)
	}
	return nil
}
