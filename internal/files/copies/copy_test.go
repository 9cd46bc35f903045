package copies

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// scratch returns a directory that is removed at the end whatever its contents.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "godwit-files-")
	check(t, err)
	t.Cleanup(func() {
		if err := files.RemoveTree(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func send(t *testing.T, trees ...files.Tree) []byte {
	t.Helper()
	var stream bytes.Buffer
	check(t, sendTrees(context.Background(), &stream, trees, nil))
	return stream.Bytes()
}

// into places every tree in a directory under dir named after its kind and name.
func into(dir string) Place {
	return func(kind files.TreeKind, name string) (string, error) {
		return filepath.Join(dir, string(kind)+"-"+name), nil
	}
}

// copyTree sends a tree and receives it.
func copyTree(t *testing.T, source string) string {
	t.Helper()
	stream := bytes.NewReader(append(send(t, files.Tree{Kind: files.Writable, Path: source}),
		"what comes behind"...))
	dir := scratch(t)
	check(t, receiveTrees(context.Background(), stream, into(dir), files.Limits{}))
	if stream.Len() != len("what comes behind") {
		t.Errorf("%d bytes behind the stream are left, want all", stream.Len())
	}
	return filepath.Join(dir, "writable-")
}

func must(fd int, err error) int {
	if err != nil {
		panic(err)
	}
	return fd
}

func write(t *testing.T, path, content string) {
	t.Helper()
	check(t, os.WriteFile(path, []byte(content), 0o644))
}

// setFlags adds inode flags; RemoveTree copes with them at the end.
func setFlags(t *testing.T, path string, flags int) {
	t.Helper()
	fd := must(unix.Open(path, unix.O_RDONLY, 0))
	defer unix.Close(fd)
	present, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	check(t, err)
	check(t, unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(present)|flags))
}

// acl is a POSIX ACL as the kernel stores it in an extended attribute (include/uapi/linux/posix_acl_xattr.h).
func acl(user uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, 1<<32 - 1}, {2, 5, user}, {4, 4, 1<<32 - 1}, {16, 7, 1<<32 - 1}, {32, 1, 1<<32 - 1}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// fileCapability is security.capability with cap_net_bind_service, revision 2
// (include/uapi/linux/capability.h).
func fileCapability() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 0x02000001)
	return append(b, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// awkward makes a tree with every kind of entry.
func awkward(t *testing.T) string {
	t.Helper()
	root := scratch(t)
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("empty"), "")
	write(t, at("small"), "hello")
	write(t, at("not \xff\xfe UTF-8\n"), "name")
	write(t, at(strings.Repeat("n", 255)), "long name")

	linksAndModes(t, at)
	specials(t, at)
	attributesOfAllKinds(t, at)
	sparse(t, at)

	times := []unix.Timespec{{Sec: 1_000_000_000, Nsec: 123_456_789}, {Sec: -1, Nsec: 999_999_999}}
	for _, name := range []string{"small", "symlink", "dir/sub", "dir", "fifo", "whiteout", "."} {
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, at(name), times, unix.AT_SYMLINK_NOFOLLOW))
	}
	setFlags(t, at("immutable"), fsys.FlagImmutable)
	setFlags(t, at("linked-immutable"), fsys.FlagImmutable)
	setFlags(t, at("append"), fsys.FlagAppend|fsys.FlagNoDump)
	setFlags(t, at("immutable-dir"), fsys.FlagImmutable)
	return root
}

func linksAndModes(t *testing.T, at func(string) string) {
	t.Helper()
	check(t, os.MkdirAll(at("dir/sub"), 0o755))
	write(t, at("dir/first"), "linked")
	check(t, os.Link(at("dir/first"), at("dir/sub/second")))
	check(t, os.Link(at("dir/first"), at("third")))
	write(t, at("suid"), "#!")
	check(t, os.Chown(at("suid"), 1000, 1001))
	check(t, unix.Chmod(at("suid"), 0o6755))
	check(t, os.Mkdir(at("sticky"), 0o700))
	check(t, unix.Chmod(at("sticky"), 0o3777))
	check(t, os.Chown(at("sticky"), 4_000_000_000, 4_000_000_001))
	write(t, at("sticky/inherits group"), "")
	write(t, at("immutable"), "fixed")
	write(t, at("linked-immutable"), "fixed")
	check(t, os.Link(at("linked-immutable"), at("linked-immutable-2")))
	write(t, at("append"), "log")
	check(t, os.Mkdir(at("immutable-dir"), 0o700))
	write(t, at("immutable-dir/inside"), "x")
	outside := filepath.Join(scratch(t), "outside")
	write(t, outside, "also linked from elsewhere")
	check(t, os.Link(outside, at("half")))
}

func specials(t *testing.T, at func(string) string) {
	t.Helper()
	check(t, os.Symlink("/etc/passwd", at("symlink")))
	check(t, os.Symlink("../../..", at("dir/up")))
	check(t, os.Symlink(strings.Repeat("x/", 2000), at("long-target")))
	check(t, os.Link(at("symlink"), at("symlink-2")))
	check(t, os.Lchown(at("symlink"), 12, 34))
	check(t, unix.Mkfifo(at("fifo"), 0o622))
	check(t, unix.Mknod(at("socket"), unix.S_IFSOCK|0o711, 0))
	check(t, unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	check(t, unix.Chmod(at("null"), 0o666))
	check(t, unix.Mknod(at("block"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 70000))))
	check(t, unix.Mknod(at("whiteout"), unix.S_IFCHR, 0))
	check(t, os.Link(at("whiteout"), at("whiteout-2")))
}

func attributesOfAllKinds(t *testing.T, at func(string) string) {
	t.Helper()
	set := func(name, attribute string, value []byte) {
		t.Helper()
		check(t, unix.Lsetxattr(at(name), attribute, value, 0))
	}
	write(t, at("acl"), "x")
	check(t, os.Chown(at("acl"), 7, 8))
	set("acl", "system.posix_acl_access", acl(1234))
	set("sticky", "system.posix_acl_default", acl(77))
	write(t, at("capable"), "x")
	check(t, os.Chown(at("capable"), 5, 5))
	set("capable", "security.capability", fileCapability())
	set("small", "user.empty", nil)
	set("small", "user.binary", []byte{0, 1, 2, 255})
	set("small", "trusted.secret", []byte("s"))
	set("symlink", "trusted.on-link", []byte("l"))
	set("fifo", "trusted.on-fifo", []byte("f"))
	check(t, os.Mkdir(at("opaque"), 0o755))
	set("opaque", "trusted.overlay.opaque", []byte("y"))
	set("opaque", "trusted.overlay.redirect", []byte("/elsewhere"))
	set("opaque", "trusted.overlay.origin", []byte("a file handle"))
	set("opaque", "trusted.overlay.impure", []byte("y"))
	set("small", "trusted.overlay.nlink", []byte("U+1"))
	set("small", "trusted.overlay.metacopy", nil)
	set(".", "user.on-root", []byte("r"))
}

func sparse(t *testing.T, at func(string) string) {
	t.Helper()
	f, err := os.Create(at("sparse"))
	check(t, err)
	for _, offset := range []int64{1 << 20, 5<<20 + 4096, 3 << 40} {
		_, err := f.WriteAt(bytes.Repeat([]byte{byte(offset >> 20), 7}, 5000), offset)
		check(t, err)
	}
	check(t, f.Truncate(4<<40))
	check(t, f.Close())
	f, err = os.Create(at("only-hole"))
	check(t, err)
	check(t, f.Truncate(100))
	check(t, f.Close())
	block := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	write(t, at("large"), strings.Repeat(string(block), 5)+"tail")
}

func TestCopyIsExact(t *testing.T) {
	source := awkward(t)
	want := snapshot(t, source, func(name string) bool {
		return name != "trusted.overlay.origin" && name != "trusted.overlay.impure" &&
			name != "trusted.overlay.nlink"
	})
	// A name that is also linked from outside of the tree becomes a separate file in the copy.
	got := snapshot(t, copyTree(t, source), nil)
	same(t, without(want, "/half"), without(got, "/half"))
	if !strings.Contains(want["/half"], got["/half"]) {
		t.Errorf("half: want %s\ngot %s", want["/half"], got["/half"])
	}
	if len(got) < 35 {
		t.Errorf("only %d names", len(got))
	}
}

func without(lines map[string]string, path string) map[string]string {
	rest := map[string]string{}
	for p, line := range lines {
		if p != path {
			rest[p] = line
		}
	}
	return rest
}

func TestSourceIsNotTouched(t *testing.T) {
	source := awkward(t)
	// Access times before the modification times: relatime would move them at the first read.
	old := []unix.Timespec{{Sec: 1000}, {Sec: 2_000_000_000}}
	for _, name := range []string{"dir/first", "symlink", "dir/up", "dir/sub", "dir", "."} {
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(source, name), old, unix.AT_SYMLINK_NOFOLLOW))
	}
	before := atimes(t, source)
	send(t, files.Tree{Kind: files.Writable, Path: source})
	same(t, before, atimes(t, source))
}

func atimes(t *testing.T, root string) map[string]string {
	t.Helper()
	times := map[string]string{}
	for _, name := range []string{"dir/first", "symlink", "dir/up", "dir/sub", "dir", "."} {
		var stat unix.Stat_t
		check(t, unix.Lstat(filepath.Join(root, name), &stat))
		times[name] = fmt.Sprint(stat.Atim, stat.Mtim, stat.Ctim)
	}
	return times
}

// deep makes a chain of directories, far beyond PATH_MAX, with siblings along it, and returns its root.
func deep(t *testing.T, levels int, name string) string {
	t.Helper()
	root := scratch(t)
	fd := must(unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0))
	for i := range levels {
		for _, sibling := range []string{"a", "z"} {
			file := must(unix.Openat(fd, sibling+name, unix.O_CREAT|unix.O_WRONLY, 0o600))
			_, err := unix.Write(file, []byte(fmt.Sprint(sibling, i)))
			check(t, err)
			unix.Close(file)
		}
		check(t, unix.Mkdirat(fd, name, 0o755))
		next := must(unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0))
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	return root
}

func TestPathsLongerThanTheKernelTakes(t *testing.T) {
	source := deep(t, 400, strings.Repeat("d", 250))
	want := snapshot(t, source, nil)
	same(t, want, snapshot(t, copyTree(t, source), nil))
}

func TestManyNamesInADirectoryThatIsClosedMeanwhile(t *testing.T) {
	source := scratch(t)
	for i := range 3000 {
		write(t, filepath.Join(source, fmt.Sprintf("file-with-a-rather-long-name-%05d", i)), "")
	}
	chain := deep(t, 3*fsys.OpenLevels, "d")
	check(t, os.Rename(chain, filepath.Join(source, "chain")))
	same(t, snapshot(t, source, nil), snapshot(t, copyTree(t, source), nil))
}

func TestSeveralTrees(t *testing.T) {
	one, two, dir := scratch(t), scratch(t), scratch(t)
	write(t, filepath.Join(one, "a"), "1")
	write(t, filepath.Join(two, "b"), "2")
	check(t, os.Mkdir(filepath.Join(dir, "volume-data"), 0o755))
	check(t, unix.Setxattr(filepath.Join(dir, "volume-data"), "system.posix_acl_default", acl(9), 0))
	var progress int64
	var stream bytes.Buffer
	trees := []files.Tree{{Kind: files.Writable, Path: one}, {Kind: files.VolumeOf, Name: "data", Path: two}}
	check(t, sendTrees(context.Background(), &stream, trees, func(n int64) { progress = n }))
	if progress != int64(stream.Len()) {
		t.Errorf("progress says %d of %d bytes", progress, stream.Len())
	}
	check(t, receiveTrees(context.Background(), &stream, into(dir), files.Limits{Bytes: 2, Entries: 2}))
	same(t, snapshot(t, one, nil), snapshot(t, filepath.Join(dir, "writable-"), nil))
	same(t, snapshot(t, two, nil), snapshot(t, filepath.Join(dir, "volume-data"), nil))
}

func TestTreeSize(t *testing.T) {
	source := scratch(t)
	write(t, filepath.Join(source, "a"), strings.Repeat("x", 10_000))
	f, err := os.Create(filepath.Join(source, "hole"))
	check(t, err)
	check(t, f.Truncate(1<<40))
	check(t, f.Close())
	size, err := files.TreeSize(context.Background(), files.Tree{Path: source})
	check(t, err)
	if size != (files.Size{Entries: 3, Bytes: 10_000}) {
		t.Errorf("got %+v", size)
	}
	if _, err := files.TreeSize(context.Background(), files.Tree{Path: filepath.Join(source,
		"a")}); err == nil {
		t.Error("a file was measured as a tree")
	}
}

func BenchmarkSmallTree(b *testing.B) {
	dir := b.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		b.Fatal(err)
	}
	for i := range 5 {
		if err := os.WriteFile(filepath.Join(source, fmt.Sprint(i)), bytes.Repeat([]byte("x"), 1000),
			0o644); err != nil {
			b.Fatal(err)
		}
	}
	var sending, receiving time.Duration
	for i := range b.N {
		var stream bytes.Buffer
		begin := time.Now()
		if err := sendTrees(context.Background(), &stream, []files.Tree{{Kind: files.Writable, Path: source}},
			nil); err != nil {
			b.Fatal(err)
		}
		sending += time.Since(begin)
		begin = time.Now()
		place := func(files.TreeKind, string) (string, error) {
			return filepath.Join(dir, fmt.Sprint("copy", i)),
				nil
		}
		if err := receiveTrees(context.Background(), &stream, place, files.Limits{}); err != nil {
			b.Fatal(err)
		}
		receiving += time.Since(begin)
	}
	b.ReportMetric(float64(sending.Microseconds())/float64(b.N), "us-send/op")
	b.ReportMetric(float64(receiving.Microseconds())/float64(b.N), "us-receive/op")
}
