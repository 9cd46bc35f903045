package services

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// samba serves the files of a share. Its client is Samba's own.
func samba() service {
	return service{
		name: "samba", port: 445, packages: []string{"samba", "smbclient"}, every: 100 * time.Millisecond,
		setup: `
			mkdir -p /srv/share /run/samba
			printf '[share]\npath = /srv/share\nread only = no\n' >>/etc/samba/smb.conf
			printf 'secret\nsecret\n' | smbpasswd -s -a root`,
		command: []string{"smbd", "--foreground", "--no-process-group", "--debug-stdout"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			return connectSMB(ctx, to, number)
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (int64, error) {
			out, err := to.exec(ctx, "sh", "-c", `grep -rlx "$1" /srv/share | wc -l`, "sh", anyRow(number))
			if err != nil {
				return 0, err
			}
			found, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
			return max(0, asked-found), err
		},
	}
}

// smbSession is an smbclient that reads commands.
type smbSession struct {
	program *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	number  int
}

func connectSMB(ctx context.Context, to address, number int) (s smbSession, err error) {
	host, _, err := net.SplitHostPort(to.hostPort)
	if err != nil {
		return s, err
	}
	s.number = number
	// smbclient waits for the next line of a pipe without a look at its own buffer.
	s.program, err = to.program(context.WithoutCancel(ctx), "stdbuf", "-i0", "-oL", "smbclient",
		"--user=root%secret", "//"+host+"/share")
	if err != nil {
		return s, err
	}
	if s.in, err = s.program.StdinPipe(); err != nil {
		return s, err
	}
	out, err := s.program.StdoutPipe()
	if err != nil {
		return s, err
	}
	s.program.Stderr = s.program.Stdout
	s.out = bufio.NewReader(out)
	return s, s.program.Start()
}

// Ask stores a file, reads it back, and compares.
func (s smbSession) Ask(ctx context.Context, nth int64) error {
	defer context.AfterFunc(ctx, func() { _ = s.program.Process.Kill() })()
	name, text := key(s.number, nth), row(s.number, nth)
	script := "lcd /tmp\n!echo '%[2]s' >%[1]s\nput %[1]s\nget %[1]s back\n!cat back; rm %[1]s back\n"
	if _, err := fmt.Fprintf(s.in, script, name, text); err != nil {
		return err
	}
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			return errors.Join(fmt.Errorf("smbclient has ended: %w", err), ctx.Err())
		}
		switch line = strings.TrimSpace(line); {
		case strings.Contains(line, "NT_STATUS_"), strings.HasPrefix(line, "cat: "):
			return errors.New(line)
		case line == text:
			return nil
		}
	}
}

func (s smbSession) Close() error {
	_ = s.program.Process.Kill() // it may have ended
	return s.program.Wait()
}
