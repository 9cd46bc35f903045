package files

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMirrorBelievesNothing sends records that do not fit the existing tree.
func TestMirrorBelievesNothing(t *testing.T) {
	fifo := Entry{Name: "p", Mode: unix.S_IFIFO | 0o600}
	for what, body := range map[string]func(w *roundWriter){
		"enter of a link":       func(w *roundWriter) { w.enter("l") },
		"enter of a file":       func(w *roundWriter) { w.enter("f") },
		"enter of nothing":      func(w *roundWriter) { w.enter("x") },
		"change of nothing":     func(w *roundWriter) { w.change(aFile("x", ""), keepContent) },
		"change through a link": func(w *roundWriter) { rewrite(w, aFile("l", "bad"), "bad") },
		"content for a device":  func(w *roundWriter) { rewrite(w, aFile("n", "bad"), "bad") },
		"content for a fifo":    func(w *roundWriter) { rewrite(w, aFile("p", "bad"), "bad") },
		"a file becomes a fifo": func(w *roundWriter) {
			e := fifo
			e.Name = "f"
			w.change(&e,
				keepContent)
		},
		"a link leads elsewhere": func(w *roundWriter) {
			w.change(&Entry{Name: "l", Mode: unix.S_IFLNK,
				Target: "/"}, keepContent)
		},
		"another device": func(w *roundWriter) {
			w.change(&Entry{Name: "n", Mode: unix.S_IFCHR,
				Device: 5}, keepContent)
		},
		"another size": func(w *roundWriter) {
			w.change(aFile("f", "longer than it is"),
				keepContent)
		},
		"keep behind the end": func(w *roundWriter) {
			w.change(aFile("f", "longer"),
				inPlace)
			w.keep(5)
		},
		"copy from behind the end": func(w *roundWriter) {
			w.change(aFile("f", "long"), withCopies)
			w.copy(1,
				4)
		},
		"keep in a new file": func(w *roundWriter) { w.other(aFile("x", "123")); w.keep(1) },
		"removal of nothing": func(w *roundWriter) { w.remove("x") },
		"parking of nothing": func(w *roundWriter) { w.park("x", 1) },
		"a number twice":     func(w *roundWriter) { w.park("f", 1); w.park("p", 1) },
		"two inodes with one number": func(w *roundWriter) {
			w.change(numbered("f", 1), keepContent)
			e := fifo
			e.Links = 1
			w.change(&e, keepContent)
		},
		"a number that is not":  func(w *roundWriter) { w.place(9, aFile("x", ""), keepContent) },
		"a stage that is not":   func(w *roundWriter) { w.link("x", 9) },
		"forget what is not":    func(w *roundWriter) { w.forget(9) },
		"place onto a name":     func(w *roundWriter) { w.park("f", 1); w.place(1, &fifo, keepContent) },
		"a directory as a file": func(w *roundWriter) { w.park("d", 1); w.place(1, aFile("x", ""), inPlace) },
		"a file as a directory": func(w *roundWriter) { w.park("f", 1); w.placeDirectory(1, "x") },
		"a link to a directory": func(w *roundWriter) { w.park("d", 1); w.link("x", 1) },
		"the same round again":  nil,
	} {
		t.Run(what, func(t *testing.T) {
			outside := filepath.Join(scratch(t), "victim")
			write(t, outside, "untouched")
			before := snapshot(t, filepath.Dir(outside), nil)
			s := newStagehand(t, Limits{})
			s.round(func(w *roundWriter) {
				w.directory("d")
				w.leave(aDirectory(1))
				file(w, aFile("f", "1234"), "1234")
				w.other(&Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: outside})
				w.other(&Entry{Name: "n", Mode: unix.S_IFCHR | 0o600, Device: unix.Mkdev(1, 3)})
				w.other(&fifo)
				w.up()
			})
			if body == nil {
				s.number--
				body = func(w *roundWriter) { w.up() }
			}
			if err := s.try(liveRound, body); err == nil {
				t.Error("it was accepted")
			} else if !errors.Is(err, ErrCorrupt) && !errors.Is(err, unix.EPERM) {
				t.Errorf("got %v", err)
			}
			same(t, before, snapshot(t, filepath.Dir(outside), nil))
		})
	}
}

func numbered(name string, n uint64) *Entry {
	e := aFile(name, "1234")
	e.Links = n
	return e
}

func TestNoDevicesAmongTheEnginesFiles(t *testing.T) {
	for _, kind := range []uint32{unix.S_IFCHR, unix.S_IFBLK} {
		err := refused(t, forge(t, func(w *roundWriter) {
			w.tree(Private, "")
			w.other(&Entry{Name: "n", Mode: kind | 0o600, Device: unix.Mkdev(8, 0)})
			leave(w)
		}))
		if !errors.Is(err, ErrCorrupt) {
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
	first := func(w *roundWriter) {
		w.directory("d")
		file(w, aFile("f", "1"), "1")
		w.directory("sub")
		w.leave(aDirectory(1))
		w.leave(aDirectory(1))
		w.up()
	}
	second := []func(w *roundWriter){
		func(w *roundWriter) { w.enter("d") },
		func(w *roundWriter) { rewrite(w, aFile("f", "new"), "new") },
		func(w *roundWriter) { w.enter("sub") },
		func(w *roundWriter) { file(w, aFile("x", "x"), "x") },
		func(w *roundWriter) { w.leave(aDirectory(5)) },
		func(w *roundWriter) { w.remove("f") },
		func(w *roundWriter) { w.park("sub", 1) },
		func(w *roundWriter) { w.placeDirectory(1, "sub2"); w.up() },
		func(w *roundWriter) { w.leave(aDirectory(7)); w.up() },
	}
	swaps := map[string]func(s *stagehand) error{
		"directory": func(s *stagehand) error { return swapIn(s.at("d"), outside) },
		"file":      func(s *stagehand) error { return swapIn(s.at("d/f"), filepath.Join(outside, "f")) },
		"inner":     func(s *stagehand) error { return swapIn(s.at("d/sub"), filepath.Join(outside, "sub")) },
		"root":      func(s *stagehand) error { return swapIn(s.dir, outside) },
	}
	for what, swap := range swaps {
		for when := range len(second) {
			s := newStagehand(t, Limits{})
			s.round(first)
			r, w := io.Pipe()
			go func() {
				out, err := newRoundWriter(w, 2, liveRound, nil)
				if err == nil {
					err = errors.Join(out.tree(Writable, ""), out.out.flush())
				}
				for i, step := range second {
					if i == when {
						err = errors.Join(err, swap(s))
					}
					step(out)
					err = errors.Join(err, out.out.flush()) // the reader has taken it when this returns
				}
				w.CloseWithError(errors.Join(err, out.end()))
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
				check(t, RemoveTree(s.dir+".away"))
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
