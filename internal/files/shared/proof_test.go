package shared

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
)

func claim(t *testing.T, directory string) *Claim {
	t.Helper()
	c, err := NewClaim(directory, NewName())
	must(t, err)
	t.Cleanup(func() { _ = c.Remove() })
	return c
}

// TestProof proves a directory that two nodes mount by sshfs, one on the same machine, and one below a
// link.
func TestProof(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	link, local := filepath.Join(t.TempDir(), "link"), t.TempDir()
	must(t, os.Symlink(local, link))
	for name, one := range map[string]struct {
		a, b   string
		locked bool
	}{"sshfs": {r.mounts[0], r.mounts[1], false}, "back": {r.mounts[1], r.mounts[0], false},
		"local": {local, link, true}} {
		t.Run(name, func(t *testing.T) {
			must(t, os.WriteFile(filepath.Join(one.a, "file"), nil, 0o644))
			then := time.Unix(1e9, 5e8)
			must(t, os.Chtimes(one.a, then, then))
			c := claim(t, one.a)
			answer, err := Find(one.b, c.name)
			must(t, err)
			if err := c.Check(answer); err != nil {
				t.Error(err)
			}
			if answer.Locked != one.locked {
				t.Errorf("locks hold on both: %v", answer.Locked)
			}
			if same := c.SameInode(answer); same != (name == "local") {
				t.Errorf("inodes are the same on both: %v", same)
			}
			if other := (Answer{Token: answer.Token, Reply: answer.Reply}); c.SameInode(other) {
				t.Error("inodes are the same on a node that does not tell them")
			}
			must(t, c.Remove())
			// A server that hides what is removed while it is open removes it a moment later.
			await.True(t, "nothing to be left", func() bool {
				entries, err := os.ReadDir(one.a)
				return err == nil && len(entries) == 1
			})
			if info, err := os.Stat(one.a); name == "local" && (err != nil || !info.ModTime().Equal(then)) {
				t.Errorf("the directory's time is %v, was %v", info.ModTime(), then)
			}
		})
	}
}

// TestNoProof: storage that only looks shared is not proven.
func TestNoProof(t *testing.T) {
	t.Parallel()
	a, b := t.TempDir(), t.TempDir()
	c := claim(t, a)
	if _, err := Find(b, c.name); !errors.Is(err, ErrNotShared) {
		t.Errorf("another directory: %v", err)
	}
	if _, err := Find(filepath.Join(b, "none"), c.name); !errors.Is(err, ErrNotShared) {
		t.Errorf("no directory: %v", err)
	}
	// A copy that another program keeps in step, one way.
	content, err := os.ReadFile(filepath.Join(a, c.name))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(b, c.name), content, 0o600))
	answer, err := Find(b, c.name)
	must(t, err)
	if err := c.Check(answer); !errors.Is(err, ErrNotShared) {
		t.Errorf("a copy: %v", err)
	}
	// And both ways: by then it is another file.
	content, err = os.ReadFile(filepath.Join(b, c.name))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(a, "new"), content, 0o600))
	must(t, os.Rename(filepath.Join(a, "new"), filepath.Join(a, c.name)))
	if err := c.Check(answer); !errors.Is(err, ErrNotShared) {
		t.Errorf("a copy in step: %v", err)
	}
	if err := c.Check(Answer{Token: strings.Repeat("0", secretHex), Reply: answer.Reply}); !errors.Is(err,
		ErrNotShared) {
		t.Errorf("another token: %v", err)
	}
}

// TestHostileToken: some files must be neither written nor read, whatever another node says.
func TestHostileToken(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	c := claim(t, t.TempDir())
	good, err := os.ReadFile(filepath.Join(c.directory.Name(), c.name))
	must(t, err)
	must(t, os.WriteFile(outside, good, 0o600))
	answered := slices.Clone(good)
	answered[answerAt] = 'a'
	makers := map[string]func(path string) error{
		"link":      func(path string) error { return os.Symlink(outside, path) },
		"hard link": func(path string) error { return os.Link(outside, path) },
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"device": func(path string) error {
			return unix.Mknod(path, unix.S_IFCHR|0o600,
				int(unix.Mkdev(1, 3)))
		},
		"short": func(path string) error { return os.WriteFile(path, good[:len(good)-1], 0o600) },
		"long": func(path string) error {
			return os.WriteFile(path, append(slices.Clone(good), 'x'),
				0o600)
		},
		"other": func(path string) error {
			return os.WriteFile(path,
				[]byte(strings.Repeat("x", len(good))), 0o600)
		},
		"answered": func(path string) error { return os.WriteFile(path, answered, 0o600) },
	}
	for what, make := range makers {
		name := NewName()
		must(t, make(filepath.Join(dir, name)))
		if answer, err := Find(dir, name); err == nil {
			t.Errorf("%s is answered: %+v", what, answer)
		}
	}
	if now, err := os.ReadFile(outside); err != nil || !slices.Equal(now, good) {
		t.Errorf("a file outside was changed: %q, %v", now, err)
	}
	for _, name := range []string{"", "..", "../outside", "/etc/passwd", namePrefix, c.name + "0",
		c.name + "/x", strings.ToUpper(c.name), "x" + c.name[1:]} {
		if _, err := Find(dir, name); err == nil || errors.Is(err, ErrNotShared) {
			t.Errorf("name %q: %v", name, err)
		}
		if err := RemoveLeft(dir, name); err == nil {
			t.Errorf("name %q is removed", name)
		}
	}
	if _, err := NewClaim(dir, "x"); err == nil {
		t.Error("a token gets any name")
	}
}

func TestClaimTakesNothingOver(t *testing.T) {
	t.Parallel()
	dir, name := t.TempDir(), NewName()
	target := filepath.Join(t.TempDir(), "target")
	must(t, os.Symlink(target, filepath.Join(dir, name)))
	if _, err := NewClaim(dir, name); err == nil {
		t.Error("a token is written through a link that was there")
	}
	if _, err := os.Stat(target); err == nil {
		t.Error("the link was followed")
	}
	if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
		t.Error("what was there was removed")
	}
	if _, err := NewClaim(filepath.Join(dir, "none"), name); err == nil {
		t.Error("a token in no directory")
	}
}

func TestRemoveLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := claim(t, dir)
	must(t, RemoveLeft(dir, c.name))
	must(t, RemoveLeft(dir, c.name))
	must(t, RemoveLeft(filepath.Join(dir, "none"), c.name))
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(magic + strings.Repeat("0", secretHex) + " " + strings.Repeat("-", secretHex) + "\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), NewName())
		must(t, os.WriteFile(path, content, 0o600))
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		defer file.Close()
		answer, err := respond(file)
		now, readErr := os.ReadFile(path)
		must(t, readErr)
		if err != nil && string(now) != string(content) {
			t.Errorf("a file that is no token was changed")
		}
		if err == nil && string(now) != magic+answer.Token+" "+answer.Reply+"\n" {
			t.Errorf("it holds %q", now)
		}
	})
}
