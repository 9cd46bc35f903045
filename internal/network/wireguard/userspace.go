package wireguard

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// Command is the hidden command of this program that becomes the process of a device: see Main.
const Command = "wireguard-device"

// patience is how long to wait for the process to answer, to start, or to end.
const patience = 20 * time.Second

// readyFD is the descriptor on which the process reports that it answers (nothing), or why it ends.
const readyFD = 3

// inProcess is a device run by a process of this program.
type inProcess struct {
	socket string
}

// openProcess finds the process of a device. A missing process, or a process of another version, is an
// error.
func openProcess(config Config) (*inProcess, error) {
	p := &inProcess{socket: config.Socket}
	var version string
	err := p.ask("version=1\n\n", func(r io.Reader) error {
		return readAnswer(r, func(key, value string) error {
			if key == "version" {
				version = value
			}
			return nil
		})
	})
	if err == nil && version != ownVersion() {
		err = fmt.Errorf("the WireGuard process is of version %.40q", version)
	}
	return p, err
}

// startProcess starts a process, in the network namespace of the calling thread.
func startProcess(config Config) (*inProcess, error) {
	log, err := os.OpenFile(config.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of the WireGuard process: %w", err)
	}
	defer func() { _ = log.Close() }()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the WireGuard process: %w", err)
	}
	defer func() { _ = ours.Close() }()
	cmd := exec.Command("/proc/self/exe", Command, config.Name, config.Socket, strconv.Itoa(config.MTU))
	cmd.Args[0], cmd.Dir, cmd.Stdout, cmd.Stderr = "godwit", "/", log, log
	cmd.ExtraFiles = []*os.File{theirs}
	err = config.Within(func() error { return kernel.StartLasting(cmd) })
	_ = theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("start the WireGuard process: %w", err)
	}
	go func() { _ = cmd.Wait() }() // its socket shows when it has ended
	if err := errors.Join(ours.SetReadDeadline(time.Now().Add(patience)), awaitReady(ours)); err != nil {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("start the WireGuard process: %w", err)
	}
	return &inProcess{socket: config.Socket}, nil
}

// awaitReady reads what the process reports about its start.
func awaitReady(r io.Reader) error {
	const most = 4096
	said, err := io.ReadAll(io.LimitReader(r, most))
	switch {
	case err != nil:
		return fmt.Errorf("it does not answer: %w", err)
	case string(said) != ready:
		return fmt.Errorf("it has ended: %s", strings.TrimSpace(string(said)))
	}
	return nil
}

// ask sends a request and passes the answer to a function.
func (p *inProcess) ask(request string, read func(io.Reader) error) error {
	conn, err := net.DialTimeout("unix", p.socket, patience)
	if err != nil {
		return fmt.Errorf("the WireGuard process does not answer: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err = conn.SetDeadline(time.Now().Add(patience)); err == nil {
		_, err = io.WriteString(conn, request)
	}
	if err == nil {
		err = read(conn)
	}
	if err != nil {
		return fmt.Errorf("the WireGuard process: %w", err)
	}
	return nil
}

func (p *inProcess) get() (State, error) {
	var state State
	err := p.ask("get=1\n\n", func(r io.Reader) (err error) {
		state, err = decodeGet(r)
		return err
	})
	return state, err
}

func (p *inProcess) set(c change) error {
	return p.ask(encodeSet(c), func(r io.Reader) error {
		return readAnswer(r, func(string, string) error { return nil })
	})
}

func (p *inProcess) close() error { return nil }

// watchEnd returns a function that waits until the process that now has the socket has ended.
func watchEnd(socket string) (await func() error) {
	conn, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return func() error { return nil } // no process has it
	}
	return func() error {
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 1))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("the WireGuard process does not end within %s of the removal of its device",
				patience)
		}
		return nil // the kernel has closed its side
	}
}
