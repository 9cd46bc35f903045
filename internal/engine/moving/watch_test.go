package moving

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseWatch(t *testing.T) {
	line := "inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:7e9e"
	want := fileID{device: unix.Mkdev(8, 0x13), inode: 0x9e7e}
	if got, ok := parseWatch(line); !ok || got != want {
		t.Errorf("%+v, %v", got, ok)
	}
	for _, bad := range []string{"", "pos:\t0", "inotify wd:1", "inotify wd:1 ino:zz sdev:1", "inotify ino:1"} {
		if got, ok := parseWatch(bad); ok {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzParseWatch(f *testing.F) {
	f.Add("inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0")
	f.Fuzz(func(_ *testing.T, line string) { parseWatch(line) })
}
