package services

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
)

// companion is a program in a service's image that uses the service all the time, on the clients' machine.
type companion struct {
	cmd   *exec.Cmd
	said  bytes.Buffer
	ended chan struct{}

	mu   sync.Mutex
	told bool
}

// programOf returns a command of an image's program on the clients' machine, in the image's file system,
// which is mounted only for this command. The program can only write to /tmp.
func programOf(ctx context.Context, i image, command ...string) (*exec.Cmd, error) {
	lower := strings.TrimSuffix(i.layers[0], ".tar")
	script := `mount -t overlay -o "ro,lowerdir=$1:$2" overlay /mnt
		mount -t tmpfs tmpfs /mnt/tmp; shift 2; exec chroot /mnt "$@"`
	args := append([]string{"unshare", "--mount", "sh", "-euc", script, "sh", i.users, lower}, command...)
	return world.Command(ctx, clientMachine, args...)
}

func startCompanion(ctx context.Context, i image, command []string) (*companion, error) {
	cmd, err := programOf(ctx, i, command...)
	if err != nil {
		return nil, err
	}
	c := &companion{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &c.said, &c.said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // any end is an error, whatever the exit code
		close(c.ended)
	}()
	return c, nil
}

// err returns, once, that the program has ended, with its output.
func (c *companion) err() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ended:
		if c.told {
			return nil
		}
		c.told = true
		return fmt.Errorf("the program beside the clients has ended: %s: %s", c.cmd.ProcessState,
			lastOf(c.said.String()))
	default:
		return nil
	}
}

func (c *companion) stop() {
	if c == nil {
		return
	}
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.ended
}
