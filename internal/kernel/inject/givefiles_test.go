package inject

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGiveFiles gives files to a process that waits in a system call, and checks that it continues with the
// call.
func TestGiveFiles(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	echo := func(text string) {
		t.Helper()
		if _, err := fmt.Fprintln(in, text); err != nil {
			t.Fatal(err)
		}
		if got, err := lines.ReadString('\n'); got != text+"\n" || err != nil {
			t.Fatalf("cat says %q, %v", got, err)
		}
	}
	echo("before")
	var files []*os.File
	for _, name := range []string{"one", "two"} {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), name)
		t.Cleanup(func() { _ = file.Close() })
		files = append(files, file)
	}
	fds, err := GiveFiles(cmd.Process.Pid, files)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", cmd.Process.Pid, fd))
		if want := "/memfd:" + files[i].Name() + " (deleted)"; err != nil || target != want {
			t.Errorf("descriptor %d is %q, %v, want %q", fd, target, err, want)
		}
	}
	echo("after")
	if _, err := GiveFiles(cmd.Process.Pid, []*os.File{files[0], os.NewFile(999, "none")}); err == nil {
		t.Error("a file that is not open was given")
	}
	echo("at last")
}
