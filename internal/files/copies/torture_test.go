package copies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/filestest"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/lab/workload/torture"
)

// tortured is a directory being copied, with processes at work in it.
type tortured struct {
	tree    files.Tree
	gang    *torture.Gang
	reserve bool
}

// compare compares every attribute and byte, and, if nothing was reserved, also the holes.
func (d *tortured) compare(t *testing.T, copied string) {
	t.Helper()
	take := func(path string, zeros bool) filestest.Snapshot {
		lines, err := filestest.Take(path, filestest.Options{Zeros: zeros})
		check(t, err)
		return lines
	}
	same(t, take(d.tree.Path, true), take(copied, true))
	if !d.reserve && !t.Failed() {
		t.Logf("in %s only what is a hole differs:", d.tree.Path)
		same(t, take(d.tree.Path, false), take(copied, false))
	}
}

// tormented makes a directory and starts processes in it.
func tormented(t *testing.T, tree files.Tree, seed uint64, processes int) *tortured {
	t.Helper()
	tree.Path = scratch(t)
	if tree.Kind == files.Memory {
		check(t, unix.Mount("tmpfs", tree.Path, "tmpfs", 0, "size=512m"))
		t.Cleanup(func() { check(t, unix.Unmount(tree.Path, unix.MNT_DETACH)) })
	}
	reserve := seed%4 < 2
	gang, err := torture.Start("/proc/self/exe", torture.Config{
		Dir: tree.Path, Seed: seed, Processes: processes, Rate: 1500, Locks: seed%2 == 0, Reserve: reserve,
		Long: true, Tell: 50,
	})
	check(t, err)
	t.Cleanup(func() { check(t, gang.Kill()) })
	return &tortured{tree: tree, gang: gang, reserve: reserve}
}

// transfer makes a round at one end and applies it at the other.
func transfer(t *testing.T, m *Mirror, round func(w io.Writer) (Stats, error)) (Stats, bool) {
	t.Helper()
	r, w := io.Pipe()
	type sent struct {
		stats Stats
		err   error
	}
	result := make(chan sent, 1)
	go func() {
		stats, err := round(w)
		w.CloseWithError(err)
		result <- sent{stats, err}
	}()
	last, err := m.Round(context.Background(), r)
	r.CloseWithError(err)
	s := <-result
	if err := errors.Join(err, s.err); err != nil {
		t.Fatalf("%v", err)
	}
	return s.stats, last
}

// survivesTorture copies two directories in rounds while processes work in them, and compares the copies
// with the final directories.
func survivesTorture(t *testing.T, seed uint64, rounds int) {
	t.Helper()
	all := []*tortured{
		tormented(t, files.Tree{Kind: files.Writable}, seed, 3),
		tormented(t, files.Tree{Kind: files.Memory}, seed+1, 2),
	}
	target := scratch(t)
	at := func(tree files.Tree) string { return filepath.Join(target, string(tree.Kind)+"-"+tree.Name) }
	check(t, os.Mkdir(at(all[1].tree), 0o700))
	check(t, unix.Mount("tmpfs", at(all[1].tree), "tmpfs", 0, "size=512m"))
	t.Cleanup(func() { check(t, unix.Unmount(at(all[1].tree), unix.MNT_DETACH)) })

	source, err := NewSource(Config{
		Trees: []files.Tree{all[0].tree, all[1].tree}, Dir: scratch(t), Workers: 2,
		Mapped: func(context.Context) (compare.Mapped, error) {
			inodes := map[uint64]bool{}
			for _, d := range all {
				more, err := d.gang.Mapped()
				if err != nil {
					return compare.Mapped{}, err
				}
				maps.Copy(inodes, more)
			}
			return compare.Mapped{Inodes: inodes}, nil
		},
	})
	check(t, err)
	t.Cleanup(func() { check(t, source.Close()) })
	mirror := NewMirror(into(target), files.Limits{})
	t.Cleanup(func() { check(t, mirror.Undo()) })

	ctx := context.Background()
	for range rounds {
		for _, d := range all {
			check(t, d.gang.Await(5))
		}
		stats, _ := transfer(t, mirror,
			func(w io.Writer) (Stats, error) { return source.Round(ctx, w, nil) })
		t.Logf("%+v", stats)
	}
	for _, d := range all {
		check(t, d.gang.Freeze())
	}
	stats, _ := transfer(t, mirror,
		func(w io.Writer) (Stats, error) { return source.Final(ctx, w, nil) })
	t.Logf("%+v", stats)
	remap(t, all[0].tree.Path)
	if _, last := transfer(t, mirror,
		func(w io.Writer) (Stats, error) { return source.Last(ctx, w, nil) }); !last {
		t.Error("the last round is not the last")
	}
	for _, d := range all {
		d.compare(t, at(d.tree))
	}
}

// remap gives a file one more name, as CRIU does for open, deleted files.
func remap(t *testing.T, dir string) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDWR|unix.O_TMPFILE, 0o600)
	if errors.Is(err, unix.EPERM) {
		return // the directory is immutable now
	}
	check(t, err)
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("deleted and open"))
	check(t, err)
	name := filepath.Join(dir, "link_remap.1")
	check(t, unix.Linkat(unix.AT_FDCWD, fsys.FdPath(fd), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW))
}

// soakSeeds is how many seeds the long form tries.
const soakSeeds = "GODWIT_FILES_SEEDS"

func TestTorture(t *testing.T) {
	seeds, rounds := 1, 5
	if text := os.Getenv(soakSeeds); text != "" {
		var err error
		seeds, err = strconv.Atoi(text)
		check(t, err)
		rounds = 12
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { survivesTorture(t, uint64(seed), rounds) })
	}
}
