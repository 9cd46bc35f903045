package filestest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func take(t *testing.T, path string, options Options) Snapshot {
	t.Helper()
	s, err := Take(path, options)
	check(t, err)
	return s
}

func setFlag(t *testing.T, path string, flag int) {
	t.Helper()
	f, err := os.Open(path)
	check(t, err)
	defer f.Close()
	check(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flag))
}

// TestEveryDifferenceIsSeen changes one thing at a time.
func TestEveryDifferenceIsSeen(t *testing.T) {
	const noDump, extents = 0x40, 0x80000
	times := func(path string, at, mt int64) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Sec: 5, Nsec: at}, {Sec: 6, Nsec: mt}},
			unix.AT_SYMLINK_NOFOLLOW)
	}
	acl := "\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x05\x00\x07\x00\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff" +
		"\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00" + strings.Repeat("\x00", 12)
	for what, change := range map[string]func(t *testing.T, at func(string) string){
		"content": func(t *testing.T,
			at func(string) string) {
			check(t, os.WriteFile(at("f"), []byte("other"), 0))
		},
		"size": func(t *testing.T, at func(string) string) { check(t, os.Truncate(at("f"), 4)) },
		"hole": func(t *testing.T, at func(string) string) {
			check(t, os.Truncate(at("f"), 0))
			check(t, os.Truncate(at("f"), 5))
		},
		"mode": func(t *testing.T,
			at func(string) string) {
			check(t, unix.Chmod(at("d/g"), 0o4755))
		},
		"owner":          func(t *testing.T, at func(string) string) { check(t, os.Lchown(at("l"), 1, 0)) },
		"group of root":  func(t *testing.T, at func(string) string) { check(t, os.Lchown(at("."), 0, 1)) },
		"mtime":          func(t *testing.T, at func(string) string) { check(t, times(at("f"), 1, 2)) },
		"atime of link":  func(t *testing.T, at func(string) string) { check(t, times(at("l"), 2, 1)) },
		"directory time": func(t *testing.T, at func(string) string) { check(t, times(at("d"), 1, 2)) },
		"xattr": func(t *testing.T,
			at func(string) string) {
			check(t, unix.Setxattr(at("f"), "user.x", []byte("w"), 0))
		},
		"xattr of link": func(t *testing.T,
			at func(string) string) {
			check(t, unix.Lsetxattr(at("l"), "trusted.x", nil, 0))
		},
		"acl": func(t *testing.T, at func(string) string) {
			check(t, unix.Setxattr(at("f"), "system.posix_acl_access", []byte(acl), 0))
		},
		"default acl": func(t *testing.T, at func(string) string) {
			check(t, unix.Setxattr(at("d"), "system.posix_acl_default", []byte(acl), 0))
		},
		"capability": func(t *testing.T, at func(string) string) {
			check(t, unix.Setxattr(at("f"), "security.capability", []byte(capability), 0))
		},
		"flag":        func(t *testing.T, at func(string) string) { setFlag(t, at("f"), extents|noDump) },
		"flag of dir": func(t *testing.T, at func(string) string) { setFlag(t, at("d"), extents|noDump) },
		"link target": func(t *testing.T, at func(string) string) {
			check(t, os.Remove(at("l")))
			check(t, os.Symlink("there", at("l")))
			check(t, times(at("l"), 1, 1))
		},
		"device": func(t *testing.T, at func(string) string) {
			check(t, os.Remove(at("n")))
			check(t, unix.Mknod(at("n"), unix.S_IFCHR, int(unix.Mkdev(1, 5))))
			check(t, times(at("n"), 1, 1))
		},
		"hard link": func(t *testing.T, at func(string) string) {
			check(t, os.Remove(at("d/g")))
			check(t, os.Link(at("f"), at("d/g")))
		},
		"removed": func(t *testing.T, at func(string) string) { check(t, os.Remove(at("n"))) },
		"added": func(t *testing.T,
			at func(string) string) {
			check(t, os.Mkdir(at("new"), 0o700))
		},
		"name by one byte": func(t *testing.T,
			at func(string) string) {
			check(t, os.Rename(at("not \xff"), at("not \xfe")))
		},
		"kind, same length": func(t *testing.T, at func(string) string) {
			check(t, os.Remove(at("n")))
			check(t, unix.Mkfifo(at("n"), 0))
			check(t, times(at("n"), 1, 1))
		},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			at := func(name string) string { return filepath.Join(root, name) }
			check(t, os.Mkdir(at("d"), 0o755))
			check(t, os.WriteFile(at("f"), []byte("12345"), 0o644))
			check(t, unix.Setxattr(at("f"), "user.x", []byte("v"), 0))
			check(t, os.WriteFile(at("d/g"), []byte("12345"), 0o755))
			check(t, os.WriteFile(at("not \xff"), nil, 0o644))
			check(t, os.Symlink("where", at("l")))
			check(t, unix.Mknod(at("n"), unix.S_IFCHR, int(unix.Mkdev(1, 3))))
			for _, name := range []string{"f", "d/g", "not \xff", "l", "n", "d", "."} {
				check(t, times(at(name), 1, 1))
			}
			before := take(t, root, Options{})
			if again := Differences(before, take(t, root, Options{}), 10); len(again) > 0 {
				t.Fatalf("nothing was changed: %v", again)
			}
			change(t, at)
			if found := Differences(before, take(t, root, Options{}), 10); len(found) == 0 {
				t.Error("the difference was not seen")
			}
		})
	}
}

func TestZerosMayCountAsHoles(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	for _, dir := range []string{one, two} {
		f, err := os.Create(filepath.Join(dir, "f"))
		check(t, err)
		check(t, f.Truncate(3*block))
		_, err = f.WriteAt([]byte("x"), 2*block)
		check(t, err)
		if dir == two {
			_, err = f.WriteAt(make([]byte, block), 0)
			check(t, err)
		}
		check(t, f.Close())
		stamp := []unix.Timespec{{Sec: 1}, {Sec: 1}}
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, "f"), stamp, 0))
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, dir, stamp, 0))
	}
	if found := Differences(take(t, one, Options{}), take(t, two, Options{}), 10); len(found) != 1 {
		t.Errorf("holes and zeros: %v", found)
	}
	if found := Differences(take(t, one, Options{Zeros: true}), take(t, two, Options{Zeros: true}),
		10); len(found) != 0 {
		t.Errorf("holes and zeros that count as the same: %v", found)
	}
}
