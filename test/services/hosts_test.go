package services

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/ssh"
)

// sshd has a shell for each session, which echoes its input.
func sshd() service {
	return service{
		name: "sshd", port: 22, packages: []string{"openssh-server"},
		setup:   `mkdir /run/sshd && echo root:secret | chpasswd && echo "PermitRootLogin yes" >>/etc/ssh/sshd_config`,
		command: []string{"/usr/sbin/sshd", "-D", "-e"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			conn, err := to.Dial(ctx)
			if err != nil {
				return nil, err
			}
			config := &ssh.ClientConfig{
				User: "root", Auth: []ssh.AuthMethod{ssh.Password("secret")}, Timeout: askTimeout,
				HostKeyCallback: ssh.InsecureIgnoreHostKey(), // the image is new, with its key
			}
			over, channels, requests, err := ssh.NewClientConn(conn, to.hostPort, config)
			if err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			s := sshSession{client: ssh.NewClient(over, channels, requests), number: number}
			return s, s.open()
		},
	}
}

type sshSession struct {
	client *ssh.Client
	number int
	in     io.Writer
	out    *bufio.Reader
}

// open starts a shell at a terminal.
func (s *sshSession) open() error {
	shell, err := s.client.NewSession()
	if err != nil {
		return err
	}
	if err := shell.RequestPty("xterm", 24, 200, ssh.TerminalModes{ssh.ECHO: 0}); err != nil {
		return err
	}
	in, err := shell.StdinPipe()
	if err != nil {
		return err
	}
	out, err := shell.StdoutPipe()
	if err != nil {
		return err
	}
	s.in, s.out = in, bufio.NewReader(out)
	return shell.Start("exec bash --norc --noediting")
}

// Ask makes the shell compute.
func (s sshSession) Ask(ctx context.Context, nth int64) error {
	defer context.AfterFunc(ctx, func() { _ = s.client.Close() })()
	if _, err := fmt.Fprintf(s.in, "echo answer $((%d * 1000 + %d))\n", nth, s.number); err != nil {
		return err
	}
	want := fmt.Sprintf("answer %d", nth*1000+int64(s.number))
	for { // the shell prompts, too
		line, err := s.out.ReadString('\n')
		if err != nil {
			return fmt.Errorf("instead of %q: %w", want, err)
		}
		if strings.HasSuffix(strings.TrimSpace(line), want) {
			return nil
		}
	}
}

func (s sshSession) Close() error { return s.client.Close() }
