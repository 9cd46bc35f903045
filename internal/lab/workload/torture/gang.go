package torture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Gang is several processes at work in one directory. They end with the thread that started them, at the
// latest.
type Gang struct {
	commands []*exec.Cmd
	tells    []io.Reader
}

// Start runs a program, which must call Run when Command is its first argument, once for each process.
func Start(program string, config Config) (*Gang, error) {
	g := &Gang{}
	for i := range config.Processes {
		c := config
		c.Processes, c.Seed = 1, config.Seed*100+uint64(i)
		command := exec.Command(program, c.Args()...)
		command.Stderr = os.Stderr
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		tells, err := command.StdoutPipe()
		if err == nil {
			err = command.Start()
		}
		if err != nil {
			return nil, errors.Join(err, g.Kill())
		}
		reader := bufio.NewReader(tells)
		g.commands, g.tells = append(g.commands, command), append(g.tells, reader)
		if line, err := reader.ReadString('\n'); err != nil || line != Ready+"\n" {
			return nil, errors.Join(fmt.Errorf("it says %q: %w", line, err), g.Kill())
		}
	}
	return g, nil
}

// Await returns when every process has reported progress so many more times (Config.Tell).
func (g *Gang) Await(times int) error {
	for i, tells := range g.tells {
		if _, err := io.ReadFull(tells, make([]byte, times)); err != nil {
			return fmt.Errorf("process %d of %d has ended: %w", i+1, len(g.tells),
				errors.Join(err, g.commands[i].Wait()))
		}
	}
	return nil
}

// forward forwards the reports of all processes, until one has ended.
func (g *Gang) forward(tell int, out io.Writer) {
	for tell > 0 {
		if err := g.Await(1); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		fmt.Fprint(out, ".")
	}
}

// Freeze stops all processes, and returns when none runs any more.
func (g *Gang) Freeze() error {
	for _, c := range g.commands {
		if err := c.Process.Signal(unix.SIGSTOP); err != nil {
			return fmt.Errorf("freeze: %w", err)
		}
	}
	for _, c := range g.commands {
		var status unix.WaitStatus
		_, err := unix.Wait4(c.Process.Pid, &status, unix.WUNTRACED, nil)
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Wait4(c.Process.Pid, &status, unix.WUNTRACED, nil)
		}
		if err != nil || !status.Stopped() {
			return fmt.Errorf("freeze: process %d has status %#x: %w", c.Process.Pid, status, err)
		}
	}
	return nil
}

// Thaw lets the processes continue.
func (g *Gang) Thaw() error {
	for _, c := range g.commands {
		if err := c.Process.Signal(unix.SIGCONT); err != nil {
			return fmt.Errorf("thaw: %w", err)
		}
	}
	return nil
}

// Kill kills the processes.
func (g *Gang) Kill() error {
	var failed error
	for _, c := range g.commands {
		if err := c.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			failed = errors.Join(failed, err)
		}
		_ = c.Wait() // it was killed
	}
	g.commands, g.tells = nil, nil
	return failed
}

// Mapped returns the inode numbers that any process has mapped shared and writable.
func (g *Gang) Mapped() (map[uint64]bool, error) {
	inodes := map[uint64]bool{}
	for _, c := range g.commands {
		f, err := os.Open(fmt.Sprintf("/proc/%d/maps", c.Process.Pid))
		if err != nil {
			return nil, err
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 5 || fields[1] != "rw-s" {
				continue
			}
			number, err := strconv.ParseUint(fields[4], 10, 64)
			if err != nil {
				return nil, errors.Join(err, f.Close())
			}
			inodes[number] = true
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return inodes, nil
}
