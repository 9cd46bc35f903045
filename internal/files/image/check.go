package image

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/godwit/godwit/internal/guard"
)

// layerCheck reads a layer's archive during the unpacking and refuses what no honest layer contains.
// Unpacking is safe without it; with it, a hostile or broken archive is refused with a reason instead of
// being bent into something.
type layerCheck struct {
	*io.PipeWriter
	done chan error
	size int64
}

func startCheck() *layerCheck {
	in, out := io.Pipe()
	c := &layerCheck{PipeWriter: out, done: make(chan error, 1)}
	go func() {
		err := guard.Do(func() error { return c.run(bufio.NewReaderSize(in, unpackBuffer)) })
		_ = in.CloseWithError(err) // ends the unpacking, which writes its input here
		c.done <- err
	}()
	return c
}

// result ends the check and returns its finding. If the unpacking has failed, only the check's own finding
// counts.
func (c *layerCheck) result(unpacking error) (int64, error) {
	if unpacking != nil {
		_ = c.CloseWithError(errUnpacking)
	} else {
		_ = c.Close()
	}
	err := <-c.done
	if errors.Is(err, errUnpacking) {
		return 0, nil
	}
	return c.size, err
}

var errUnpacking = errors.New("the unpacking failed")

func (c *layerCheck) run(r io.Reader) error {
	archive := tar.NewReader(r)
	escapes := map[string]bool{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if errors.Is(err, tar.ErrHeader) {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if err != nil {
			return err
		}
		if err := checkHeader(header, escapes); err != nil {
			return fmt.Errorf("%w: %.200q: %w", ErrInvalid, header.Name, err)
		}
		c.size += header.Size
	}
}

// maxEscapes bounds how many escapes of an archive are remembered.
const maxEscapes = 1 << 20

// checkHeader refuses an entry that is not part of the layer's own tree. Escapes are the symbolic
// links so far that lead out of it: ordinary in an image (/etc/mtab), but nothing may be put
// through them.
func checkHeader(header *tar.Header, escapes map[string]bool) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if err := checkName(header.Name); err != nil {
		return err
	}
	name := path.Clean(header.Name)
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if escapes[parent] {
			return fmt.Errorf("it lies behind the symbolic link %q, which leads out of the layer", parent)
		}
	}
	delete(escapes, name)
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	case tar.TypeLink:
		if err := checkName(header.Linkname); err != nil {
			return fmt.Errorf("a hard link to %.200q: %w", header.Linkname, err)
		}
	case tar.TypeSymlink:
		if path.IsAbs(header.Linkname) || !local(path.Join(path.Dir(name), header.Linkname)) {
			if len(escapes) >= maxEscapes {
				return fmt.Errorf("more than %d symbolic links lead out of the layer", maxEscapes)
			}
			escapes[name] = true
		}
	default:
		return fmt.Errorf("unknown kind of entry %q", header.Typeflag)
	}
	return checkRecords(header.PAXRecords)
}

func local(name string) bool { return name != ".." && !strings.HasPrefix(name, "../") }

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("it has no name")
	case path.IsAbs(name):
		return errors.New("absolute paths are not allowed")
	case strings.Contains(name, "\x00"):
		return errors.New("its name contains a NUL")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return errors.New("paths with .. are not allowed")
		}
	}
	return nil
}

// checkRecords refuses attributes by which a layer could steer overlayfs, and sparse files: a few
// bytes could fill any disk, and no builder of images makes them.
func checkRecords(records map[string]string) error {
	for key := range records {
		switch {
		case strings.HasPrefix(key, "SCHILY.xattr.trusted.overlay."),
			strings.HasPrefix(key, "SCHILY.xattr.user.overlay."):
			return fmt.Errorf("the attribute %.100q belongs to the overlay file system",
				strings.TrimPrefix(key, "SCHILY.xattr."))
		case strings.HasPrefix(key, "GNU.sparse."):
			return errors.New("sparse files are not allowed in layers")
		}
	}
	return nil
}
