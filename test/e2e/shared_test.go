package e2e

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// fileServer serves the files of this machine by SFTP, on a port of node a.
func fileServer(t *testing.T) (port string) {
	t.Helper()
	listener, err := world.lab.Listen(t.Context(), "a", "tcp", "10.77.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serveFiles(conn)
		}
	}()
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func serveFiles(conn net.Conn) {
	defer conn.Close()
	file, err := conn.(*net.TCPConn).File()
	if err != nil {
		return
	}
	defer file.Close()
	cmd := exec.Command("/usr/lib/openssh/sftp-server")
	cmd.Stdin, cmd.Stdout = file, file
	_ = cmd.Run() // it ends with the connection
}

// mountAt mounts a directory of the file server in a node, by sshfs. sshfs's own caching of directories is
// off.
func mountAt(t *testing.T, node, port, directory, point, options string) {
	t.Helper()
	at(t, node, "/bin/mkdir", "-p", point)
	out := at(t, node, "sshfs", "10.77.0.1:"+directory, point, "-o", "dir_cache=no,directport="+port+options)
	if out.code != 0 {
		t.Fatalf("sshfs at %s: %s%s", node, out.stdout, out.stderr)
	}
	t.Cleanup(func() {
		for _, args := range [][]string{{"umount", point}, {"/bin/rmdir", point}} {
			if out, err := command(context.Background(), node, "", args...); err != nil || out.code != 0 {
				t.Errorf("%v on %s: %v: %s", args, node, err, out.stderr)
			}
		}
	})
}

// TestSharedStorage has volumes and host directories on a network file system that both nodes mount. They
// are recognised, and not copied; open and mapped files and locks survive.
func TestSharedStorage(t *testing.T) {
	t.Parallel()
	port := fileServer(t)
	for _, one := range []struct{ workload, volume, point string }{
		{"files-open", "shared", "/var/lib/godwit/volumes/shared"},
		{"locks", "/tmp/shared-host", "/tmp/shared-host"},
	} {
		t.Run(one.workload, func(t *testing.T) {
			storage := t.TempDir()
			if err := os.WriteFile(filepath.Join(storage, "there"), []byte("before\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, node := range nodes() {
				mountAt(t, node, port, storage, one.point, "")
			}
			c := state(t, []string{"-v", one.volume + ":/data"}, one.workload)
			c.volumes = nil // it belongs to no node
			c.ok("check")
			for _, flags := range [][]string{{"--mode", cold}, {"--mode", preCopy, "--volumes", "shared"},
				{"--mode", postCopy, "--volumes", "/data=shared"}} {
				for key, v := range c.moves(flags...) {
					if v.Way != migration.VolumeShared || v.Bytes != 0 {
						t.Errorf("%v: volume %s: %+v", flags, key, v)
					}
				}
				c.ok("check")
				// FUSE tells its server with a delay that a file was closed; a removed file is hidden until
				// then.
				var hidden []string
				if !labtest.Within(patience, func() bool {
					hidden, _ = filepath.Glob(storage + "/.*")
					return len(hidden) == 0
				}) {
					t.Errorf("%v: left: %v", flags, hidden)
				}
			}
			if out := at(t, c.other(), "/bin/cat", one.point+"/there"); out.stdout != "before\n" {
				t.Errorf("where it is no more: %q %s", out.stdout, out.stderr)
			}
			if one.workload == "files-open" {
				checkMapped(t, storage)
			}
			c.remove()
			c.id = ""
		})
	}
}

// TestUnsureStorage has a network file system of which it cannot be proved whether the other node mounts
// it, because it is not writable. It is not moved, because source and target could be the same.
func TestUnsureStorage(t *testing.T) {
	t.Parallel()
	port, storage := fileServer(t), t.TempDir()
	for _, node := range nodes() {
		mountAt(t, node, port, storage, "/tmp/unsure", ",ro")
	}
	c := run(t, []string{"-v", "/tmp/unsure:/data:ro"}, "/bin/sh", "-c",
		"echo ready; while :; do sleep 0.05; done")
	c.refused("host directory /tmp/unsure", "cannot find out whether", "read-only file system",
		"--volumes /data=skip")
	if v := c.moves("--volumes", "/data=skip")["/data"]; v.Way != migration.VolumeSkip {
		t.Errorf("what became of it: %+v", v)
	}
	c.remove()
	c.id = ""
}

// checkMapped checks that all bytes of the mapped file are the same at the server, whichever side wrote
// last.
func checkMapped(t *testing.T, storage string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(storage, "mapped"))
	if err != nil || len(content) == 0 || strings.Trim(string(content), string(content[:1])) != "" {
		t.Errorf("the mapped file at the server: %d bytes, %v", len(content), err)
	}
}

// TestSharedByOneMachine has a host directory that both nodes see because they are on one machine: its
// locks are also the same, so a container cannot take a lock at the target that it still holds at the
// source.
func TestSharedByOneMachine(t *testing.T) {
	t.Parallel()
	directory, err := os.MkdirTemp(labtest.Directory, "godwit-e2e-shared-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	c := run(t, []string{"-v", directory + ":/data"}, "/bin/sh",
		"-c", "echo here >/data/file; exec 3</data/file; echo ready; while :; do sleep 0.05; done")
	for range 2 {
		if v := c.moves()["/data"]; v.Way != migration.VolumeShared ||
			!strings.Contains(v.Why, "both nodes mount it") {
			t.Errorf("what became of it: %+v", v)
		}
		if out := c.exec("/bin/cat", "/data/file", "/proc/1/fd/3"); out.stdout != "here\nhere\n" {
			t.Errorf("on %s: %q %s", c.node, out.stdout, out.stderr)
		}
	}
	t.Run("locked", func(t *testing.T) {
		c := state(t, []string{"-v", directory + ":/data"}, "locks")
		c.refused("host directory "+directory, "file /data/locked", "locks there hold on both nodes")
	})
	if left, err := filepath.Glob(directory + "/.godwit*"); err != nil || len(left) > 0 {
		t.Errorf("tokens are left: %v, %v", left, err)
	}
}
