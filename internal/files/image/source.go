package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

// source is a directory or an archive that images are loaded from: files by name.
type source interface {
	// open returns a file and its size. Error: fs.ErrNotExist.
	open(name string) (io.ReadCloser, int64, error)
	io.Closer
}

// directory is a source whose files cannot lead out of it.
type directory struct{ *os.Root }

func (d directory) open(name string) (io.ReadCloser, int64, error) {
	file, err := d.Root.Open(name)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// archiveFile is the location of a file in a tar archive, or the name of another file that has its content.
type archiveFile struct {
	offset, size int64
	link         string
}

// tarball is a source that lies in a tar archive on disk. Its files are read in place: nothing is unpacked.
type tarball struct {
	file  *os.File
	files map[string]archiveFile
}

const maxArchiveEntries = 100_000

// openTarball reads an archive's table of contents, and closes the file if that fails.
func openTarball(file *os.File) (*tarball, error) {
	t := &tarball{file: file, files: make(map[string]archiveFile)}
	info, err := file.Stat()
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = t.index(tar.NewReader(file), info.Size())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return t, nil
}

func (t *tarball) index(archive *tar.Reader, end int64) error {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: read the archive, which may be truncated: %w", ErrInvalid, err)
		}
		if len(t.files) >= maxArchiveEntries {
			return fmt.Errorf("%w: the archive has more than %d entries", ErrInvalid, maxArchiveEntries)
		}
		if err := t.add(header, end); err != nil {
			return fmt.Errorf("%w: entry %.200q of the archive: %w", ErrInvalid, header.Name, err)
		}
	}
	if len(t.files) == 0 {
		return fmt.Errorf("%w: the archive is empty, or is not an archive", ErrInvalid)
	}
	return nil
}

// add adds an entry to the table. The reader has read exactly its header, so the file is positioned at its
// content.
func (t *tarball) add(header *tar.Header, end int64) error {
	if err := checkHeader(header, map[string]bool{}); err != nil {
		return err
	}
	name := path.Clean(header.Name)
	switch header.Typeflag {
	case tar.TypeReg:
		offset, err := t.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if header.Size > end-offset {
			return fmt.Errorf("it claims %d bytes, the archive ends after %d: it is truncated", header.Size,
				end-offset)
		}
		t.files[name] = archiveFile{offset: offset, size: header.Size}
	case tar.TypeSymlink, tar.TypeLink: // older versions of docker save write a layer once and link to it
		target := path.Clean(header.Linkname)
		if header.Typeflag == tar.TypeSymlink {
			target = path.Join(path.Dir(name), header.Linkname)
		}
		if path.IsAbs(header.Linkname) || !local(target) {
			return errors.New("it is a link that leads out of the archive")
		}
		t.files[name] = archiveFile{link: target}
	case tar.TypeDir, tar.TypeXGlobalHeader:
	default:
		return errors.New("it is neither a file nor a directory")
	}
	return nil
}

func (t *tarball) open(name string) (io.ReadCloser, int64, error) {
	const maxLinks = 8
	next := path.Clean(name)
	for range maxLinks {
		file, ok := t.files[next]
		switch {
		case !ok:
			return nil, 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		case file.link == "":
			return io.NopCloser(io.NewSectionReader(t.file, file.offset, file.size)), file.size, nil
		}
		next = file.link
	}
	return nil, 0, fmt.Errorf("%w: more than %d links lead from one to the next at %.200q", ErrInvalid,
		maxLinks, name)
}

func (t *tarball) Close() error { return t.file.Close() }

// spool copies an archive from a stream to an unnamed file in a directory, and decompresses it if it is
// compressed as a whole.
func spool(ctx context.Context, dir string, r io.Reader) (*os.File, error) {
	file, err := os.CreateTemp(dir, temporary)
	if err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	err = os.Remove(file.Name())
	var plain io.Reader
	if err == nil {
		plain, err = plainArchive(contextReader{ctx, r})
	}
	if err == nil {
		_, err = io.CopyBuffer(onlyWriter{file}, onlyReader{plain}, make([]byte, unpackBuffer))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the archive: %w", truncated(err)), file.Close())
	}
	return file, nil
}

type onlyWriter struct{ io.Writer }

// readSmall reads a whole file, which must not be larger than a limit.
func readSmall(from source, name string, limit int64) ([]byte, error) {
	file, size, err := from.open(name)
	if err != nil {
		return nil, missing(err)
	}
	defer file.Close()
	if size > limit {
		return nil, fmt.Errorf("%w: %.200q has %d bytes, at most %d are allowed", ErrInvalid, name, size,
			limit)
	}
	raw, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return nil, fmt.Errorf("%w: read %.200q: %w", ErrInvalid, name, err)
	}
	return raw, nil
}

// missing reports a missing file as an error of the archive.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: the archive refers to something that it does not contain: %w", ErrInvalid, err)
	}
	return err
}
