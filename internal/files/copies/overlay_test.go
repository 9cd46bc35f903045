package copies

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// overlay mounts an overlay file system and returns where.
func overlay(t *testing.T, lower, upper, options string) string {
	t.Helper()
	work, merged := scratch(t), scratch(t)
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,%s", lower, upper, work, options)
	if err := unix.Mount("overlay", merged, "overlay", unix.MS_NOATIME, data); err != nil {
		t.Fatalf("mount an overlay with %s: %v", options, err)
	}
	t.Cleanup(func() { check(t, unix.Unmount(merged, 0)) })
	return merged
}

// lowerTree is a tree as in an image.
func lowerTree(t *testing.T) string {
	t.Helper()
	lower := scratch(t)
	at := func(name string) string { return filepath.Join(lower, name) }
	for _, dir := range []string{"etc/deep/er", "replaced", "moved/inner", "gone"} {
		check(t, os.MkdirAll(at(dir), 0o755))
	}
	for _, file := range []string{"etc/one", "etc/two", "etc/deep/er/three", "replaced/old",
		"moved/inner/file", "gone/x", "touched"} {
		write(t, at(file), "lower "+file)
	}
	write(t, at("big"), strings.Repeat("big", 100_000))
	return lower
}

// change makes changes in a mounted container that leave every kind of trace in the upper directory.
func change(t *testing.T, merged string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(merged, name) }
	write(t, at("new"), "new")
	check(t, os.Remove(at("touched")))
	check(t, os.RemoveAll(at("replaced")))
	check(t, os.Mkdir(at("replaced"), 0o700))
	write(t, at("replaced/new"), "in an opaque directory")
	check(t, os.Rename(at("moved"), at("moved-away")))
	check(t, os.Chmod(at("big"), 0o4711))
	check(t, os.Chown(at("etc/deep/er/three"), 33, 33))
	check(t, os.Chmod(at("etc/one"), 0o600))
	check(t, os.Link(at("etc/one"), at("linked")))
	check(t, unix.Setxattr(at("new"), "user.x", []byte("y"), 0))
}

func TestReceivedUpperMountsAndLooksTheSame(t *testing.T) {
	for _, options := range []string{
		"index=off,redirect_dir=on,metacopy=on",
		"index=on,redirect_dir=on",
		"index=off",
	} {
		t.Run(options, func(t *testing.T) {
			lower, upper := lowerTree(t), scratch(t)
			merged := overlay(t, lower, upper, options)
			write(t, filepath.Join(merged, "etc/two"), "changed")
			check(t, os.RemoveAll(filepath.Join(merged, "gone")))
			if strings.Contains(options, "redirect_dir=on") {
				change(t, merged)
			}
			want := snapshot(t, merged, nil)
			// The lower directory has another file handle at the target: a copy that nothing refers to.
			received, elsewhere := copyTree(t, upper), copyTree(t, lower)
			got := snapshot(t, overlay(t, elsewhere, received, options), nil)
			same(t, want, got)
			if _, there := got["/gone/"]; there || len(got) < 10 {
				t.Errorf("the merged tree looks wrong: %d names", len(got))
			}
		})
	}
}
