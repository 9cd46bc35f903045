package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/parts"
)

// Spool keeps uncompressed archives of layers on their way to an engine that has images of its own.
//
//	HEX.tar   a complete layer: its digest was right
//	HEX.part  the received part of a layer whose transfer broke off
//
// It is only a cache: what is gone comes again. Its methods may be called concurrently.
type Spool struct {
	dir    string
	making claims
	mu     sync.Mutex       // guards the following field
	plain  map[string]int64 // by digest, how large what this process has brought is when it is not compressed
}

const (
	wholeSuffix = ".tar"
	begunSuffix = ".part"
	// spoolFor is how long uncollected archives are kept.
	spoolFor = 24 * time.Hour
)

// OpenSpool opens or creates a spool. It removes what was unfinished when its process ended.
func OpenSpool(dir string) (*Spool, error) {
	s := &Spool{dir: dir, plain: map[string]int64{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("layers on their way: %w", err)
	}
	return s, s.sweep(func(name string, _ time.Duration) bool { return strings.HasPrefix(name, temporary) })
}

// Sweep removes uncollected archives.
func (s *Spool) Sweep() error {
	return s.sweep(func(_ string, age time.Duration) bool { return age > spoolFor })
}

func (s *Spool) sweep(old func(name string, age time.Duration) bool) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("layers on their way: %w", err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && old(entry.Name(), time.Since(info.ModTime())) {
			s.forget("sha256:" + strings.TrimSuffix(entry.Name(), wholeSuffix))
			err = os.Remove(filepath.Join(s.dir, entry.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("layers on their way: %w", err)
		}
	}
	return nil
}

func (s *Spool) path(diffID, suffix string) string {
	return filepath.Join(s.dir, strings.TrimPrefix(diffID, "sha256:")+suffix)
}

// HasLayer reports whether a complete layer is here.
func (s *Spool) HasLayer(diffID string) bool {
	_, err := s.size(diffID, wholeSuffix)
	return err == nil
}

func (s *Spool) size(diffID, suffix string) (int64, error) {
	if err := CheckDigest(diffID); err != nil {
		return 0, err
	}
	info, err := os.Lstat(s.path(diffID, suffix))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Claim reserves a layer for the caller to bring, until it is released. Not ok: the layer is here, or
// another goroutine in this process brings it, see Await.
func (s *Spool) Claim(diffID string) (release func(), ok bool) {
	return s.making.claim(diffID, s.HasLayer)
}

// Await waits until nobody else in this process brings a layer, and reports whether it is here.
func (s *Spool) Await(ctx context.Context, diffID string) (bool, error) {
	done, err := s.making.alone(ctx, diffID)
	if err != nil {
		return false, err
	}
	defer done()
	return s.HasLayer(diffID), nil
}

// BringLayer adds a layer that the caller has claimed, from an archive, compressed or not, that ends where
// r ends and has at most this many bytes when it is not compressed (0: any number). It refuses content
// without the given DiffID. If the transfer breaks off, the received part is kept, see Begun.
func (s *Spool) BringLayer(ctx context.Context, diffID string, r io.Reader, most int64) error {
	return s.bring(ctx, diffID, r, most, spoolLayer)
}

// BringBlob is BringLayer for a blob that an engine stores as a layer. The blob stays as it is: the digest
// is its own.
func (s *Spool) BringBlob(ctx context.Context, digest string, r io.Reader, most int64) error {
	return s.bring(ctx, digest, r, most, spoolBlob)
}

func (s *Spool) bring(ctx context.Context, diffID string, r io.Reader, most int64,
	spool func(io.Writer, io.Reader, string, int64) (int64, error)) error {
	if err := CheckDigest(diffID); err != nil {
		return err
	}
	if err := files.CheckSpace(s.dir, most); err != nil {
		return fmt.Errorf("layer %s: %w", diffID, err)
	}
	file, err := os.CreateTemp(s.dir, temporary)
	if err != nil {
		return fmt.Errorf("layer %s: %w", diffID, err)
	}
	defer file.Close()
	in := &broken{in: contextReader{ctx, r}}
	plain, err := spool(file, in, diffID, most)
	if err != nil {
		return errors.Join(fmt.Errorf("layer %s: %w", diffID, err),
			s.giveUp(file.Name(), diffID, in.failed != nil))
	}
	if err := os.Rename(file.Name(), s.path(diffID, wholeSuffix)); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	s.mu.Lock()
	s.plain[diffID] = plain
	s.mu.Unlock()
	return s.remove(diffID, begunSuffix)
}

// spoolLayer copies an archive, refuses what no honest layer contains, since an engine may unpack it, and
// compares its digest. It returns the archive's size.
func spoolLayer(to io.Writer, from io.Reader, diffID string, most int64) (int64, error) {
	plain, err := plainArchive(bounded(from, most))
	if err != nil {
		return 0, truncated(err)
	}
	digest, count, check := sha256.New(), &counter{most: most}, startCheck()
	bytes, err := io.CopyBuffer(io.MultiWriter(count, digest, check, to), onlyReader{plain},
		make([]byte, unpackBuffer))
	if _, refused := check.result(err); refused != nil {
		err = refused
	}
	if err != nil {
		return 0, truncated(err)
	}
	if got := "sha256:" + hex.EncodeToString(digest.Sum(nil)); got != diffID {
		return 0, fmt.Errorf("%w: the content of its archive has digest %s: it is another one or damaged",
			ErrInvalid, got)
	}
	return bytes, nil
}

// spoolBlob copies an archive that may be compressed, refuses what no honest layer contains, and compares
// its digest. It returns the uncompressed size.
func spoolBlob(to io.Writer, from io.Reader, name string, most int64) (int64, error) {
	digest, count := sha256.New(), &counter{most: most}
	raw := io.TeeReader(from, io.MultiWriter(count, digest, to))
	plain, err := plainArchive(raw)
	if err != nil {
		return 0, truncated(err)
	}
	check := startCheck()
	bytes, err := io.CopyBuffer(io.MultiWriter(&counter{most: MostOf(most)}, check), onlyReader{plain},
		make([]byte, unpackBuffer))
	if _, refused := check.result(err); refused != nil {
		err = refused
	}
	if err == nil { // data after the compressed archive belongs to it, too
		_, err = io.Copy(io.Discard, raw)
	}
	if err != nil {
		return 0, truncated(err)
	}
	if got := "sha256:" + hex.EncodeToString(digest.Sum(nil)); got != name {
		return 0, fmt.Errorf("%w: it has digest %s: it is another one or damaged", ErrInvalid, got)
	}
	return bytes, nil
}

// broken records whether the connection of a reader was lost.
type broken struct {
	in     io.Reader
	failed error
}

func (b *broken) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.failed = err
	}
	return n, err
}

// giveUp keeps the received part of a layer if the connection was lost, and the part is larger than before.
func (s *Spool) giveUp(unfinished, diffID string, lost bool) error {
	info, err := os.Lstat(unfinished)
	if before, _ := s.size(diffID, begunSuffix); err == nil && lost && info.Size() > before { // none: 0
		return os.Rename(unfinished, s.path(diffID, begunSuffix))
	}
	return errors.Join(err, os.Remove(unfinished))
}

// Begun returns the name of the received part of a missing layer, for Parts and OpenArchive; "": there is
// none.
func (s *Spool) Begun(diffID string) string {
	if size, err := s.size(diffID, begunSuffix); err != nil || size == 0 {
		return ""
	}
	return diffID + begunSuffix
}

// OpenArchive opens a layer, or its received part.
func (s *Spool) OpenArchive(name string) (io.ReadCloser, error) {
	diffID, suffix := s.named(name)
	if err := CheckDigest(diffID); err != nil {
		return nil, err
	}
	file, err := os.Open(s.path(diffID, suffix))
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", diffID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return spoolFile{file, s.plain[name]}, nil
}

// spoolFile is an archive of the spool.
type spoolFile struct {
	*os.File
	plain int64
}

// PlainBytes returns the uncompressed size; 0: unknown.
func (f spoolFile) PlainBytes() int64 { return f.plain }

func (s *Spool) named(name string) (diffID, suffix string) {
	if diffID, begun := strings.CutSuffix(name, begunSuffix); begun {
		return diffID, begunSuffix
	}
	return name, wholeSuffix
}

// Size returns the size of a layer's archive, or of its received part.
func (s *Spool) Size(name string) (int64, error) { return s.size(s.named(name)) }

// Parts emits the parts of a layer's archive, or of its received part, some at a time.
func (s *Spool) Parts(ctx context.Context, name string, emit func([]parts.Part) error) error {
	size, err := s.Size(name)
	if err != nil {
		return err
	}
	return CutArchive(ctx, size, func() (io.ReadCloser, error) { return s.OpenArchive(name) }, emit)
}

// CutArchive emits the parts of an archive of this size, some at a time.
func CutArchive(ctx context.Context, size int64, open func() (io.ReadCloser, error),
	emit func([]parts.Part) error) error {
	archive, err := open()
	if err != nil {
		return err
	}
	defer archive.Close()
	return parts.Cut(contextReader{ctx, archive}, size, emit)
}

// Remove removes layers that their engine now has, and received parts of them.
func (s *Spool) Remove(diffIDs []string) error {
	var failed error
	for _, diffID := range diffIDs {
		if err := CheckDigest(diffID); err != nil {
			return err
		}
		s.forget(diffID)
		failed = errors.Join(failed, s.remove(diffID, wholeSuffix), s.remove(diffID, begunSuffix))
	}
	return failed
}

// forget forgets how large a layer is.
func (s *Spool) forget(diffID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.plain, diffID)
}

func (s *Spool) remove(diffID, suffix string) error {
	if err := os.Remove(s.path(diffID, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("layer %s: %w", diffID, err)
	}
	return nil
}
