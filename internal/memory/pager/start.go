package pager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// Command is the hidden command of this program that becomes a pager: see Main.
const Command = "memory-pager"

// Config of a pager.
type Config struct {
	Executable string // this program
	WorkDir    string // of the CRIU that will restore
	Report     string // file with its progress: ReadReport
	Log        string // file for errors that cannot be reported otherwise
	Cgroup     string // of the container; it exists: cgroup.Open
	Remote     string // socket for pages that come after the restore: DialRemote; empty: none
}

// Pager is the agent's side of a pager.
type Pager struct {
	channel *channel
}

// controlFD is the descriptor on which a pager finds its connection.
const controlFD = 3

// Start starts a pager. When it returns, the pager listens for CRIU and has its guard. If this process ends
// before Serve, so does the pager.
func Start(ctx context.Context, config Config) (*Pager, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start a pager: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "pager")
	defer theirs.Close()
	c, err := newChannel(os.NewFile(uintptr(pair[0]), "agent"))
	if err != nil {
		return nil, err
	}
	p := &Pager{channel: c}
	err = spawn(config, theirs)
	if err == nil {
		m := message{Kind: kindSetup, Setup: &setup{
			WorkDir: config.WorkDir, Report: config.Report, Cgroup: config.Cgroup, Remote: config.Remote,
		}}
		err = p.ask(ctx, m)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a pager: %w", err), p.Close())
	}
	return p, nil
}

func spawn(config Config, control *os.File) error {
	log, err := os.OpenFile(config.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(config.Executable, Command, config.WorkDir)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.ExtraFiles = []*os.File{control}
	if err := kernel.StartLasting(cmd); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // its report says how it ended
	return nil
}

// ask sends a message and waits for the answer.
func (p *Pager) ask(ctx context.Context, m message) error {
	stop := context.AfterFunc(ctx, func() { _ = p.channel.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := p.channel.send(m); err != nil {
		return err
	}
	answer, err := p.channel.receive()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return errors.New("it ended without an answer; its log may tell why")
	case err != nil:
		return err
	case answer.Kind != kindOK:
		return errors.New(answer.Error)
	}
	return nil
}

// Serve passes the image to the pager, and closes it here. When it returns, CRIU may connect.
func (p *Pager) Serve(ctx context.Context, image *memory.Image) error {
	m := message{Kind: kindServe, images: [2]*os.File{image.Pages, image.Index}}
	err := p.ask(ctx, m)
	if err := errors.Join(err, image.Close()); err != nil {
		return fmt.Errorf("hand the memory over to the pager: %w", err)
	}
	return nil
}

// Restored reports that all processes exist, with all their mappings, and that none of them runs yet: pages
// that they are likely to touch first are filled meanwhile.
func (p *Pager) Restored() error {
	if err := p.channel.send(message{Kind: kindRestored}); err != nil {
		return fmt.Errorf("tell the pager that the processes are there: %w", err)
	}
	return nil
}

// Resumed reports that the processes run: from now on their memory is also filled in the background.
func (p *Pager) Resumed() error {
	if err := p.channel.send(message{Kind: kindResumed}); err != nil {
		return fmt.Errorf("tell the pager that the processes run: %w", err)
	}
	return nil
}

// Close closes the connection. A pager to which CRIU has not connected ends; otherwise it continues.
func (p *Pager) Close() error { return p.channel.conn.Close() }
