package copies

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// TestMirrorBelievesNothing sends records that do not fit the existing tree.
func TestMirrorBelievesNothing(t *testing.T) {
	fifo := fsys.Entry{Name: "p", Mode: unix.S_IFIFO | 0o600}
	for what, body := range map[string]func(w *records.RoundWriter){
		"enter of a link":  func(w *records.RoundWriter) { w.Enter("l") },
		"enter of a file":  func(w *records.RoundWriter) { w.Enter("f") },
		"enter of nothing": func(w *records.RoundWriter) { w.Enter("x") },
		"change of nothing": func(w *records.RoundWriter) {
			w.Change(aFile("x", ""), records.KeepContent)
		},
		"change through a link": func(w *records.RoundWriter) { rewrite(w, aFile("l", "bad"), "bad") },
		"content for a device":  func(w *records.RoundWriter) { rewrite(w, aFile("n", "bad"), "bad") },
		"content for a fifo":    func(w *records.RoundWriter) { rewrite(w, aFile("p", "bad"), "bad") },
		"a file becomes a fifo": func(w *records.RoundWriter) {
			e := fifo
			e.Name = "f"
			w.Change(&e,
				records.KeepContent)
		},
		"a link leads elsewhere": func(w *records.RoundWriter) {
			w.Change(&fsys.Entry{Name: "l", Mode: unix.S_IFLNK,
				Target: "/"}, records.KeepContent)
		},
		"another device": func(w *records.RoundWriter) {
			w.Change(&fsys.Entry{Name: "n", Mode: unix.S_IFCHR,
				Device: 5}, records.KeepContent)
		},
		"another size": func(w *records.RoundWriter) {
			w.Change(aFile("f", "longer than it is"),
				records.KeepContent)
		},
		"keep behind the end": func(w *records.RoundWriter) {
			w.Change(aFile("f", "longer"),
				records.InPlace)
			w.Keep(5)
		},
		"copy from behind the end": func(w *records.RoundWriter) {
			w.Change(aFile("f", "long"), records.WithCopies)
			w.Copy(1,
				4)
		},
		"keep in a new file": func(w *records.RoundWriter) { w.Other(aFile("x", "123")); w.Keep(1) },
		"removal of nothing": func(w *records.RoundWriter) { w.Remove("x") },
		"parking of nothing": func(w *records.RoundWriter) { w.Park("x", 1) },
		"a number twice":     func(w *records.RoundWriter) { w.Park("f", 1); w.Park("p", 1) },
		"two inodes with one number": func(w *records.RoundWriter) {
			w.Change(numbered("f", 1), records.KeepContent)
			e := fifo
			e.Links = 1
			w.Change(&e, records.KeepContent)
		},
		"a number that is not": func(w *records.RoundWriter) {
			w.Place(9, aFile("x", ""), records.KeepContent)
		},
		"a stage that is not": func(w *records.RoundWriter) { w.Link("x", 9) },
		"forget what is not":  func(w *records.RoundWriter) { w.Forget(9) },
		"place onto a name": func(w *records.RoundWriter) {
			w.Park("f", 1)
			w.Place(1, &fifo, records.KeepContent)
		},
		"a directory as a file": func(w *records.RoundWriter) {
			w.Park("d", 1)
			w.Place(1, aFile("x", ""), records.InPlace)
		},
		"a file as a directory": func(w *records.RoundWriter) { w.Park("f", 1); w.PlaceDirectory(1, "x") },
		"a link to a directory": func(w *records.RoundWriter) { w.Park("d", 1); w.Link("x", 1) },
		"the same round again":  nil,
	} {
		t.Run(what, func(t *testing.T) {
			outside := filepath.Join(scratch(t), "victim")
			write(t, outside, "untouched")
			before := snapshot(t, filepath.Dir(outside), nil)
			s := newStagehand(t, files.Limits{})
			s.round(func(w *records.RoundWriter) {
				w.Directory("d")
				w.Leave(aDirectory(1))
				file(w, aFile("f", "1234"), "1234")
				w.Other(&fsys.Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: outside})
				w.Other(&fsys.Entry{Name: "n", Mode: unix.S_IFCHR | 0o600, Device: unix.Mkdev(1, 3)})
				w.Other(&fifo)
				w.Up()
			})
			if body == nil {
				s.number--
				body = func(w *records.RoundWriter) { w.Up() }
			}
			if err := s.try(records.LiveRound, body); err == nil {
				t.Error("it was accepted")
			} else if !errors.Is(err, records.ErrCorrupt) && !errors.Is(err, unix.EPERM) {
				t.Errorf("got %v", err)
			}
			same(t, before, snapshot(t, filepath.Dir(outside), nil))
		})
	}
}

func numbered(name string, n uint64) *fsys.Entry {
	e := aFile(name, "1234")
	e.Links = n
	return e
}

func TestNoDevicesAmongTheEnginesFiles(t *testing.T) {
	for _, kind := range []uint32{unix.S_IFCHR, unix.S_IFBLK} {
		err := refused(t, forge(t, func(w *records.RoundWriter) {
			w.Tree(files.Private, "")
			w.Other(&fsys.Entry{Name: "n", Mode: kind | 0o600, Device: unix.Mkdev(8, 0)})
			leave(w)
		}))
		if !errors.Is(err, records.ErrCorrupt) {
			t.Errorf("got %v", err)
		}
	}
}

// TestLinksSwappedInMeanwhile: at the target, a program replaces directories and files by links that lead
// out, between rounds and in the middle of one.
func TestLinksSwappedInMeanwhile(t *testing.T) {
	outside := scratch(t)
	write(t, filepath.Join(outside, "f"), "untouched")
	check(t, os.Mkdir(filepath.Join(outside, "sub"), 0o700))
	before := snapshot(t, outside, nil)
	first := func(w *records.RoundWriter) {
		w.Directory("d")
		file(w, aFile("f", "1"), "1")
		w.Directory("sub")
		w.Leave(aDirectory(1))
		w.Leave(aDirectory(1))
		w.Up()
	}
	second := []func(w *records.RoundWriter){
		func(w *records.RoundWriter) { w.Enter("d") },
		func(w *records.RoundWriter) { rewrite(w, aFile("f", "new"), "new") },
		func(w *records.RoundWriter) { w.Enter("sub") },
		func(w *records.RoundWriter) { file(w, aFile("x", "x"), "x") },
		func(w *records.RoundWriter) { w.Leave(aDirectory(5)) },
		func(w *records.RoundWriter) { w.Remove("f") },
		func(w *records.RoundWriter) { w.Park("sub", 1) },
		func(w *records.RoundWriter) { w.PlaceDirectory(1, "sub2"); w.Up() },
		func(w *records.RoundWriter) { w.Leave(aDirectory(7)); w.Up() },
	}
	swaps := map[string]func(s *stagehand) error{
		"directory": func(s *stagehand) error { return swapIn(s.at("d"), outside) },
		"file":      func(s *stagehand) error { return swapIn(s.at("d/f"), filepath.Join(outside, "f")) },
		"inner":     func(s *stagehand) error { return swapIn(s.at("d/sub"), filepath.Join(outside, "sub")) },
		"root":      func(s *stagehand) error { return swapIn(s.dir, outside) },
	}
	for what, swap := range swaps {
		for when := range len(second) {
			s := newStagehand(t, files.Limits{})
			s.round(first)
			r, w := io.Pipe()
			go func() {
				out, err := records.NewRoundWriter(w, 2, records.LiveRound, nil)
				if err == nil {
					err = errors.Join(out.Tree(files.Writable, ""), out.Out.Flush())
				}
				for i, step := range second {
					if i == when {
						err = errors.Join(err, swap(s))
					}
					step(out)
					err = errors.Join(err, out.Out.Flush()) // the reader has taken it when this returns
				}
				w.CloseWithError(errors.Join(err, out.End()))
			}()
			// Success depends on what was already open: only the destination matters.
			_, err := s.mirror.Round(context.Background(), r)
			r.Close()
			if t.Log(what, when, err); err != nil && strings.Contains(err.Error(), "rename") {
				t.Error(err)
			}
			same(t, before, snapshot(t, outside, nil))
			check(t, s.mirror.Close())
			if _, err := os.Readlink(s.dir); err == nil {
				check(t, files.RemoveTree(s.dir+".away"))
			}
		}
	}
}

// swapIn replaces a file or directory by a link.
func swapIn(path, to string) error {
	err := os.Rename(path, path+".away")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(err, os.Symlink(to, path))
}
