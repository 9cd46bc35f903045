package torture

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds: data in a file, end of a file, number of files held open.
const (
	largest  = 1 << 20
	farthest = 1 << 30
	mostHeld = 8
)

// with opens a file, if it exists, and calls do with it.
func (w *worker) with(flags int, do func(f *os.File) error) error {
	return with(w.file(), flags, do)
}

func with(path string, flags int, do func(f *os.File) error) error {
	// O_NONBLOCK: the file may be a fifo by now.
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	return do(f)
}

func (w *worker) create() error {
	flags := os.O_RDWR | os.O_CREATE
	if w.random.IntN(3) > 0 {
		flags |= os.O_TRUNC
	}
	return w.with(flags, func(f *os.File) error {
		if w.random.IntN(8) == 0 {
			return nil // an empty one
		}
		_, err := f.Write(w.bytes(largest))
		return err
	})
}

// offset returns a position in a file, often at its beginning or end.
func (w *worker) offset(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 || w.random.IntN(4) == 0 {
		return 0
	}
	if w.random.IntN(4) == 0 {
		return info.Size() - 1
	}
	return w.random.Int64N(min(info.Size(), largest))
}

func (w *worker) overwrite() error {
	return w.with(os.O_RDWR, func(f *os.File) error {
		_, err := f.WriteAt(w.bytes(largest/4), w.offset(f))
		return err
	})
}

func (w *worker) append() error {
	return w.with(os.O_WRONLY|os.O_APPEND, func(f *os.File) error {
		if info, err := f.Stat(); err != nil || info.Size() > largest {
			return err
		}
		_, err := f.Write(w.bytes(4096))
		return err
	})
}

func (w *worker) truncate() error {
	return w.with(os.O_RDWR, func(f *os.File) error {
		switch w.random.IntN(4) {
		case 0:
			return f.Truncate(0)
		case 1: // far beyond its end
			return f.Truncate(w.random.Int64N(farthest))
		default:
			return f.Truncate(w.offset(f))
		}
	})
}

func (w *worker) punch() error {
	return w.with(os.O_RDWR, func(f *os.File) error {
		mode := uint32(unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE)
		if w.Reserve && w.random.IntN(4) == 0 {
			mode = unix.FALLOC_FL_ZERO_RANGE
		}
		return unix.Fallocate(int(f.Fd()), mode, w.offset(f), 1+w.random.Int64N(largest/8))
	})
}

func (w *worker) allocate() error {
	if !w.Reserve {
		return nil
	}
	return w.with(os.O_RDWR, func(f *os.File) error {
		mode := uint32(w.random.IntN(2)) * unix.FALLOC_FL_KEEP_SIZE
		return unix.Fallocate(int(f.Fd()), mode, w.offset(f), 1+w.random.Int64N(largest/8))
	})
}

// shift inserts or removes whole blocks: all data behind them moves, and none of it is written.
func (w *worker) shift() error {
	return w.with(os.O_RDWR, func(f *os.File) error {
		const block = 4096
		mode := uint32(unix.FALLOC_FL_COLLAPSE_RANGE)
		if info, err := f.Stat(); err == nil && info.Size() < largest && w.random.IntN(2) == 0 {
			mode = unix.FALLOC_FL_INSERT_RANGE
		}
		return unix.Fallocate(int(f.Fd()), mode, w.offset(f)/block*block, (1+w.random.Int64N(4))*block)
	})
}

// mapFile maps a file shared and writable. The mapping stays for a while, whatever happens to the name.
func (w *worker) mapFile() error {
	return w.with(os.O_RDWR, func(f *os.File) error {
		info, err := f.Stat()
		if err != nil || info.Size() == 0 {
			return err
		}
		m, err := unix.Mmap(int(f.Fd()), 0, int(min(info.Size(), largest)), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED)
		if err != nil {
			return err
		}
		if len(w.maps) < mostHeld {
			w.maps = append(w.maps, m)
			return nil
		}
		i := w.random.IntN(len(w.maps))
		old := w.maps[i]
		w.maps[i] = m
		return unix.Munmap(old)
	})
}

// poke writes through a mapping. A write to a page that is already dirty does not change the file's times.
func (w *worker) poke() error {
	if len(w.maps) == 0 {
		return nil
	}
	m := w.maps[w.random.IntN(len(w.maps))]
	if w.random.IntN(50) == 0 {
		return unix.Msync(m, unix.MS_SYNC)
	}
	return pokeAt(m, w.random.IntN(len(m)), byte(w.random.Uint32()))
}

// replace replaces a file as programs do that need a complete file at any time.
func (w *worker) replace() error {
	path := w.file()
	temporary := path[:len(path)-1] + "~"
	err := with(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, func(f *os.File) error {
		if _, err := f.Write(w.bytes(largest)); err != nil || w.random.IntN(10) > 0 {
			return err
		}
		return f.Sync()
	})
	if err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// hold keeps a file open, often a deleted one.
func (w *worker) hold() error {
	path := w.file()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return err
	}
	if w.random.IntN(3) == 0 {
		_ = os.Remove(path) // another process may have removed it
	}
	if len(w.open) < mostHeld {
		w.open = append(w.open, f)
		return nil
	}
	i := w.random.IntN(len(w.open))
	old := w.open[i]
	w.open[i] = f
	return old.Close()
}

func (w *worker) writeHeld() error {
	if len(w.open) == 0 {
		return nil
	}
	f := w.open[w.random.IntN(len(w.open))]
	_, err := f.WriteAt(w.bytes(4096), w.offset(f))
	return err
}

// silent changes content, and restores size and modification time.
func (w *worker) silent() error {
	path := w.file()
	return with(path, os.O_RDWR, func(f *os.File) error {
		info, err := f.Stat()
		if err != nil || info.Size() == 0 {
			return err
		}
		if _, err := f.WriteAt(w.piece[w.random.IntN(1000):][:1], w.offset(f)); err != nil {
			return err
		}
		return os.Chtimes(path, time.Time{}, info.ModTime())
	})
}

func (w *worker) read() error {
	if w.random.IntN(3) == 0 {
		d, err := os.OpenFile(w.directory(), unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer d.Close()
		_, err = d.Readdirnames(-1)
		return err
	}
	return w.with(os.O_RDONLY, func(f *os.File) error {
		_, err := io.CopyN(io.Discard, f, 1000)
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
}
