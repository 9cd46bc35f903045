package output

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, terminal bool) (*Output, Files) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "g") // short: it has a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	files := Files{Log: filepath.Join(dir, "log"), Console: filepath.Join(dir, "tty.sock")}
	o, err := Open(files, terminal)
	must(t, err)
	t.Cleanup(o.Close)
	return o, files
}

// logged returns the log of a stream.
func logged(t *testing.T, path, stream string) string {
	t.Helper()
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	var all strings.Builder
	for _, entry := range readLog(t, file) {
		if entry.Stream == stream {
			all.Write(entry.Data)
		}
	}
	return all.String()
}

// keep duplicates an end, as a container that has it does.
func keep(t *testing.T, end *os.File) *os.File {
	t.Helper()
	fd, err := unix.Dup(int(end.Fd()))
	must(t, err)
	return os.NewFile(uintptr(fd), end.Name())
}

// TestPipes checks that output is in the log when the container is drained, and that the rest is there when
// the container has ended.
func TestPipes(t *testing.T) {
	o, files := open(t, false)
	if len(o.Names) != 3 || o.Names[0] != "/dev/null" || !strings.HasPrefix(o.Names[1], "pipe:[") ||
		o.Names[1] == o.Names[2] {
		t.Errorf("names %q", o.Names)
	}
	stdout, stderr := keep(t, o.Stdout), keep(t, o.Stderr)
	must(t, o.HandOver())
	_, err := stdout.WriteString("early\n")
	must(t, err)
	must(t, o.Follow())
	for i := range 100 {
		_, err := fmt.Fprintf(stdout, "%d\n", i)
		must(t, err)
	}
	_, err = stderr.WriteString("torn")
	must(t, err)
	must(t, o.Drain())
	if got := logged(t, files.Log, "stdout"); !strings.HasPrefix(got, "early\n0\n1\n") ||
		!strings.HasSuffix(got, "99\n") {
		t.Errorf("stdout %q", got)
	}
	if got := logged(t, files.Log, "stderr"); got != "torn" {
		t.Errorf("stderr %q", got)
	}
	_, err = stdout.WriteString("last\n")
	must(t, err)
	must(t, stdout.Close())
	must(t, stderr.Close())
	must(t, o.Finish())
	if got := logged(t, files.Log, "stdout"); !strings.HasSuffix(got, "99\nlast\n") {
		t.Errorf("at the end: %q", got)
	}
}

// TestLogAway checks that Follow fails without a log, and that Drain reports a log that accepts nothing and
// loses nothing.
func TestLogAway(t *testing.T) {
	o, files := open(t, false)
	must(t, os.Mkdir(files.Log, 0o700))
	if err := o.Follow(); err == nil {
		t.Fatal("a directory is followed as a log")
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	o.log = &logWriter{file: full}
	_, err = o.Stdout.WriteString("kept\n")
	must(t, err)
	for range 2 {
		if err := o.Drain(); err == nil || !strings.Contains(err.Error(), "drain stdout") {
			t.Errorf("drained to a full disk: %v", err)
		}
	}
	must(t, full.Close())
	must(t, os.Remove(files.Log))
	o.log.file, err = os.Create(files.Log)
	must(t, err)
	must(t, o.Drain())
	if got := logged(t, files.Log, "stdout"); got != "kept\n" {
		t.Errorf("log %q", got)
	}
}

// send sends a message on the console socket, with a descriptor unless that is negative.
func send(t *testing.T, path string, fd int) {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	defer conn.Close()
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	_, _, err = conn.WriteMsgUnix([]byte("/dev/pts/0"), rights, nil)
	must(t, err)
}

// TestTerminal checks that the output of a terminal that runc passes is in the log.
func TestTerminal(t *testing.T) {
	o, files := open(t, true)
	if o.Stdout != nil || o.Stderr != nil {
		t.Error("a container with a terminal has pipes")
	}
	end, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	defer end.Close()
	must(t, unix.IoctlSetPointerInt(int(end.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(end.Fd()), unix.TIOCGPTN)
	must(t, err)
	inside, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	defer inside.Close()
	send(t, files.Console, int(end.Fd()))
	must(t, o.HandOver())
	must(t, o.Follow())
	_, err = inside.WriteString("hello\n")
	must(t, err)
	must(t, o.Drain())
	if got := logged(t, files.Log, "stdout"); got != "hello\r\n" {
		t.Errorf("log %q", got)
	}
}

// TestNoTerminal checks that a message without a terminal is an error.
func TestNoTerminal(t *testing.T) {
	o, files := open(t, true)
	send(t, files.Console, -1)
	if err := o.HandOver(); err == nil || !strings.Contains(err.Error(), "0 control messages") {
		t.Errorf("a terminal has come: %v", err)
	}
}
