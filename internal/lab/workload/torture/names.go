package torture

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func (w *worker) makeDirectory() error {
	path := w.directory()
	if path == w.Dir {
		return nil
	}
	return os.Mkdir(path, 0o777)
}

func (w *worker) removeDirectory() error {
	path := w.directory()
	if path == w.Dir {
		return nil
	}
	if w.random.IntN(3) == 0 {
		return w.removeAll(path)
	}
	return unix.Rmdir(path)
}

// removeAll replaces os.RemoveAll, which assumes that the parent is a directory when it opens it: it may be
// a fifo by now.
func (w *worker) removeAll(path string) error {
	root, err := os.OpenRoot(w.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	// a link in the path may have led elsewhere, or another process was faster
	_ = root.RemoveAll(path[len(w.Dir)+1:])
	return nil
}

// replaceDirectory replaces a directory by a new one with a few files.
func (w *worker) replaceDirectory() error {
	path := w.directory()
	if path == w.Dir {
		return nil
	}
	fresh := path + "~"
	if err := os.Mkdir(fresh, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	for _, name := range w.names()[:w.random.IntN(4)] {
		err := with(fresh+"/"+name, os.O_WRONLY|os.O_CREATE, func(f *os.File) error {
			_, err := f.Write(w.bytes(10_000))
			return err
		})
		if err != nil {
			return err
		}
	}
	if w.random.IntN(2) == 0 {
		return unix.Renameat2(unix.AT_FDCWD, fresh, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	}
	if err := w.removeAll(path); err != nil {
		return err
	}
	return unix.Rename(fresh, path)
}

func (w *worker) unlink() error { return unix.Unlink(w.file()) }

func (w *worker) rename() error { return unix.Rename(w.file(), w.file()) }

func (w *worker) exchange() error {
	return unix.Renameat2(unix.AT_FDCWD, w.anything(), unix.AT_FDCWD, w.anything(), unix.RENAME_EXCHANGE)
}

func (w *worker) renameDirectory() error {
	from, to := w.directory(), w.directory()
	if from == w.Dir || to == w.Dir {
		return nil
	}
	return unix.Rename(from, to)
}

func (w *worker) link() error { return unix.Link(w.file(), w.file()) }

func (w *worker) symlink() error {
	targets := []string{"/no/where", "a", "dir0/b", "no/where", strings.Repeat("far/", 500)}
	return unix.Symlink(targets[w.random.IntN(len(targets))], w.file())
}

func (w *worker) special() error {
	kinds := []struct{ mode, device uint32 }{
		{unix.S_IFIFO | 0o622, 0},
		{unix.S_IFSOCK | 0o711, 0},
		{unix.S_IFCHR, 0}, // a whiteout
		{unix.S_IFCHR | 0o666, uint32(unix.Mkdev(1, 3))},
		{unix.S_IFBLK | 0o660, uint32(unix.Mkdev(259, 70000))},
	}
	k := kinds[w.random.IntN(len(kinds))]
	return unix.Mknod(w.file(), k.mode, int(k.device))
}

// unnamed makes a file that gets its name when it is complete.
func (w *worker) unnamed() error {
	f, err := os.OpenFile(w.directory(), os.O_RDWR|unix.O_TMPFILE, 0o640)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(w.bytes(largest)); err != nil {
		return err
	}
	return unix.Linkat(int(f.Fd()), "", unix.AT_FDCWD, w.file(), unix.AT_EMPTY_PATH)
}
