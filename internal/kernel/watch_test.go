package kernel

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadWatches reads what inotify and fanotify of this process watch.
func TestReadWatches(t *testing.T) {
	path := filepath.Join(t.TempDir(), "watched")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	in, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(in)
	if _, err := unix.InotifyAddWatch(in, path, unix.IN_MODIFY); err != nil {
		t.Fatal(err)
	}
	fan, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fan)
	for _, mark := range []uint{0, unix.FAN_MARK_FILESYSTEM, unix.FAN_MARK_MOUNT} {
		if err := unix.FanotifyMark(fan, unix.FAN_MARK_ADD|mark, unix.FAN_MODIFY, unix.AT_FDCWD,
			path); err != nil {
			t.Fatal(err)
		}
	}
	file := []Watch{{Device: stat.Dev, Inode: stat.Ino, Mask: unix.IN_MODIFY}}
	for fd, want := range map[int]Watches{in: {Files: file},
		fan: {Files: file, Systems: []uint64{stat.Dev}}} {
		if got, err := ReadWatches(os.Getpid(), fd); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("descriptor %d: %+v, %v, want %+v", fd, got, err, want)
		}
	}
}

func TestParseWatch(t *testing.T) {
	const good = "inotify wd:1 ino:2a sdev:fd00001 mask:100 ignored_mask:0 fhandle-bytes:8"
	for line, want := range map[string]Watches{
		good: {Files: []Watch{{Device: unix.Mkdev(0xfd, 1), Inode: 0x2a, Mask: 0x100}}},
		"fanotify sdev:fd00001 mflags:0 mask:20 ignored_mask:0": {Systems: []uint64{unix.Mkdev(0xfd, 1)}},
		"fanotify mnt_id:10f mflags:0 mask:20 ignored_mask:0":   {},
		"fanotify flags:2 event-flags:8000":                     {},
		"":                                                      {},
		"inotify":                                               {},
		"inotify wd:1 ino:2a":                                   {},
		"inotify wd:1 ino:zz sdev:1":                            {},
		"tfd: 5 events: 1 ino:2a sdev:1":                        {},
		"inotify ino:2a sdev:fffffffffffffffffffff mask:100 wd:1 x:y": {},
	} {
		var got Watches
		if got.parse(line); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", line, got, want)
		}
	}
}

func FuzzParseWatch(f *testing.F) {
	f.Add("inotify wd:1 ino:2a sdev:fd00001 mask:100 ignored_mask:0 fhandle-bytes:8")
	f.Add("fanotify sdev:fd00001 mflags:0 mask:20 ignored_mask:0")
	f.Fuzz(func(_ *testing.T, line string) {
		var w Watches
		w.parse(line)
	})
}
