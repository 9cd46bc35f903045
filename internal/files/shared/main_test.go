package shared

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/godwit/godwit/internal/await"
)

// remote is a directory on a file server, and the mounts that two nodes have of it.
type remote struct {
	server string
	mounts [2]string
}

// newRemote mounts a directory twice by sshfs, each time with its own client and server process, so that
// neither mount knows of the other. The options are those of sshfs; sshfs's own caching of directories is
// off.
func newRemote(t *testing.T, options ...string) remote {
	t.Helper()
	r := remote{server: t.TempDir()}
	server := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(server, []byte("#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	for i := range r.mounts {
		r.mounts[i] = t.TempDir()
		mountSSHFS(t, server, r.server, r.mounts[i], options...)
	}
	return r
}

func mountSSHFS(t *testing.T, server, from, to string, options ...string) {
	t.Helper()
	args := []string{"-f", "server:" + from, to, "-o", "dir_cache=no,auto_unmount,ssh_command=" + server}
	for _, option := range options {
		args = append(args, "-o", option)
	}
	cmd := exec.Command("sshfs", args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start sshfs (package sshfs): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // on which it unmounts
		_ = cmd.Wait()
	})
	outer, err := os.Stat(filepath.Dir(to))
	if err != nil {
		t.Fatal(err)
	}
	await.True(t, "the mount", func() bool {
		inner, err := os.Stat(to)
		return err == nil && inner.Sys().(*syscall.Stat_t).Dev != outer.Sys().(*syscall.Stat_t).Dev
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
