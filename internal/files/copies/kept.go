package copies

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/chunk"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/manifest"
	"github.com/godwit/godwit/internal/files/records"
)

// A mirror reports what it has adopted (adopt.go) to the source, in a stream like that of a round, with its
// own records:
//
//	tree       kind name           what follows is in this tree
//	directory  depth name          what follows is in this one; first the root, of depth 0, and each
//	before those in it
//	below      name                a directory in the present one, whose own record comes later
//	file       name size form content
//	end        directories files
//
// Names of a directory are in ascending order. The form of a file's content says what follows: nothing (it
// must be sent), the digest of a small file as in a manifest, or the number of its pieces and, for each,
// its length, doubled, plus one for a hole, or else its digest.
//
// The source makes a manifest of it, in which nothing is settled, no attribute is known, and no inode is
// its own. So its first round is like any later one: it examines everything, and changes what differs or is
// gone. The mirror makes the digests with the source's key, and the source compares them with what it reads
// itself: what it sends does not depend on times.
const (
	keptTree records.RecordKind = iota + 64
	keptDirectory
	keptBelow
	keptFile
	keptEnd
)

// Key returns the secret with which the source hashes content.
func (s *Source) Key() chunk.Key { return s.key }

// keptWriter writes manifests for the source.
type keptWriter struct {
	records.Encoder
	source             *Source
	directories, files uint64
}

func (k *keptWriter) tree(tree *sourceTree) error {
	k.Kind(keptTree)
	k.Text(string(tree.Kind))
	k.Text(tree.Name)
	var part manifest.Frame
	for in := tree.Manifest.Frames(); ; {
		err := in.Next(&part)
		if errors.Is(err, io.EOF) {
			return k.Emit()
		}
		if err == nil {
			err = k.frame(&part)
		}
		if err != nil {
			return err
		}
	}
}

func (k *keptWriter) frame(part *manifest.Frame) error {
	if part.First {
		k.directories++
		k.Kind(keptDirectory)
		k.Number(uint64(part.Depth))
		k.Text(part.Name)
	}
	names := manifest.KnownReader{Unread: part.Entries}
	var entry manifest.Known
	for {
		if _, ok := names.Next(&entry); !ok {
			return nil
		}
		if entry.Directory {
			k.Kind(keptBelow)
			k.Text(entry.Name)
		} else if err := k.file(&entry); err != nil {
			return err
		}
		if err := k.Emit(); err != nil {
			return err
		}
	}
}

func (k *keptWriter) file(entry *manifest.Known) error {
	k.files++
	k.Kind(keptFile)
	k.Text(entry.Name)
	k.Number(uint64(entry.Stamp.Size()))
	k.Scratch = append(k.Scratch, byte(entry.Content.Form))
	switch entry.Content.Form {
	case manifest.ContentDigest:
		k.Scratch = append(k.Scratch, entry.Content.Digest[:]...)
	case manifest.ContentList:
		list, err := k.source.loadList(entry.Content)
		if err != nil {
			return err
		}
		k.Number(uint64(len(list)))
		for _, piece := range list {
			if piece.op == records.OpHole {
				k.Number(uint64(piece.length)<<1 | 1)
				continue
			}
			k.Number(uint64(piece.length) << 1)
			k.Scratch = append(k.Scratch, piece.digest[:]...)
		}
	}
	return nil
}

func (k *keptWriter) end() error {
	k.Kind(keptEnd)
	k.Number(k.directories)
	k.Number(k.files)
	if err := k.Emit(); err != nil {
		return err
	}
	return k.Out.Finish()
}

// Resume receives, before the first round, what the mirror has adopted. Limits bound the bytes of the
// stream, and its names.
func (s *Source) Resume(ctx context.Context, r io.Reader, limits files.Limits) error {
	if s.broken == nil && s.number > 0 {
		return errors.New("go on from an earlier copy: rounds have been sent already")
	}
	err := s.resume(ctx, io.LimitReader(r, limits.Bytes), limits.Entries)
	if err != nil {
		s.broken = err
		return fmt.Errorf("read the list of an earlier copy: %w", err)
	}
	return nil
}

func (s *Source) resume(ctx context.Context, r io.Reader, most int64) error {
	in, err := records.NewBlockReader(r)
	if err != nil {
		return err
	}
	defer in.Settle()
	k := &keptReader{Decoder: records.Decoder{In: in}, source: s, most: uint64(most),
		manifests: make(map[*sourceTree]*manifest.Spool), seed: maphash.MakeSeed()}
	if err := k.all(ctx); err != nil {
		for _, manifest := range k.manifests {
			manifest.Close()
		}
		return err
	}
	for tree, manifest := range k.manifests {
		tree.Manifest = manifest
	}
	return nil
}

// keptReader makes manifests of a mirror's report.
type keptReader struct {
	records.Decoder
	source             *Source
	most               uint64 // directories and files
	directories, files uint64
	manifests          map[*sourceTree]*manifest.Spool
	seed               maphash.Seed

	writer manifest.FrameWriter
	levels []keptLevel // the present directory, and those above it
	last   string      // name in the present directory
}

// keptLevel is a directory whose record has arrived.
type keptLevel struct {
	path  int    // length
	below uint64 // sum of hashes of the names of its directories whose records have not come
}

func (k *keptReader) all(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		kind := records.RecordKind(k.Byte())
		if k.Err == nil && len(k.levels) == 0 && kind != keptTree && kind != keptDirectory &&
			kind != keptEnd {
			k.Fail("a record of kind %d comes outside of all directories", kind)
		}
		if k.Err != nil {
			return k.Err
		}
		var err error
		switch kind {
		case keptTree:
			err = k.tree()
		case keptDirectory:
			err = k.directory()
		case keptBelow:
			err = k.below()
		case keptFile:
			err = k.file()
		case keptEnd:
			return k.end()
		default:
			k.Fail("unknown record %d", kind)
		}
		if err = cmp.Or(k.Err, err); err != nil {
			return err
		}
	}
}

// tree begins a tree, which must be one of those to be sent.
func (k *keptReader) tree() error {
	if err := k.endTree(); err != nil {
		return err
	}
	kind, name := files.TreeKind(k.Text(fsys.MaxName, "a tree's kind")), k.Text(fsys.MaxName, "a tree's name")
	if k.Err != nil {
		return k.Err
	}
	i := slices.IndexFunc(k.source.trees,
		func(t *sourceTree) bool { return t.Kind == kind && t.Name == name })
	if i < 0 || k.manifests[k.source.trees[i]] != nil {
		return fmt.Errorf("%w: tree %.80q of kind %.80q is not to be sent, or comes twice",
			records.ErrCorrupt, name,
			kind)
	}
	k.writer = manifest.FrameWriter{Out: manifest.NewSpool(k.source.config.Dir)}
	k.manifests[k.source.trees[i]] = k.writer.Out
	return nil
}

// endTree ends the previous tree, if there is one.
func (k *keptReader) endTree() error {
	if k.writer.Out == nil {
		return nil
	}
	if len(k.levels) == 0 {
		return fmt.Errorf("%w: a tree has no root", records.ErrCorrupt)
	}
	return errors.Join(k.writer.End(), k.upTo(0))
}

// upTo leaves directories, all of whose own directories must have come.
func (k *keptReader) upTo(depth int) error {
	for len(k.levels) > depth {
		if k.levels[len(k.levels)-1].below != 0 {
			return fmt.Errorf("%w: announced and received directories differ", records.ErrCorrupt)
		}
		k.levels = k.levels[:len(k.levels)-1]
	}
	return nil
}

func (k *keptReader) directory() error {
	depth, name := int(k.Number(fsys.MaxDepth-1, "a directory's depth")), k.Text(fsys.MaxName, "a file name")
	if k.Err != nil {
		return k.Err
	}
	if k.writer.Out == nil || depth > len(k.levels) || (depth == 0) != (len(k.levels) == 0) {
		return fmt.Errorf("%w: a directory of depth %d stands where none may", records.ErrCorrupt, depth)
	}
	level := keptLevel{}
	if depth == 0 {
		if name != "" {
			return fmt.Errorf("%w: a tree's root has a name", records.ErrCorrupt)
		}
	} else {
		if err := fsys.ValidName(name); err != nil {
			return fmt.Errorf("%w: %w", records.ErrCorrupt, err)
		}
		if err := errors.Join(k.writer.End(), k.upTo(depth)); err != nil {
			return err
		}
		above := &k.levels[depth-1]
		above.below -= maphash.String(k.seed, name)
		if level.path = above.path + 1 + len(name); level.path > maxPath {
			return fmt.Errorf("%w: a path of more than %d bytes", records.ErrCorrupt, maxPath)
		}
	}
	k.levels, k.last = append(k.levels, level), ""
	k.writer.Begin(&manifest.Frame{Depth: depth, Name: name, First: true, Last: true})
	return k.count(&k.directories)
}

func (k *keptReader) count(n *uint64) error {
	if *n++; k.directories+k.files > k.most {
		return fmt.Errorf("%w: more than %d names", records.ErrCorrupt, k.most)
	}
	return nil
}

// next reads a name in the present directory.
func (k *keptReader) next() string {
	name := k.Name()
	if k.Err == nil && name <= k.last {
		k.Fail("%q comes after %q", name, k.last)
	}
	k.last = name
	return name
}

func (k *keptReader) below() error {
	name := k.next()
	if k.Err != nil {
		return k.Err
	}
	k.levels[len(k.levels)-1].below += maphash.String(k.seed, name)
	return k.writer.Add(&manifest.Known{Name: name, Directory: true})
}

func (k *keptReader) file() error {
	entry := manifest.Known{Name: k.next()}
	size := int64(k.Number(math.MaxInt64, "a file size"))
	binary.LittleEndian.PutUint32(entry.Stamp[manifest.StampMode:], unix.S_IFREG)
	binary.LittleEndian.PutUint64(entry.Stamp[manifest.StampLength:], uint64(size))
	var err error
	switch form := manifest.ContentForm(k.Byte()); form {
	case manifest.ContentUnknown:
	case manifest.ContentDigest:
		entry.Content = manifest.Content{Form: manifest.ContentDigest, Digest: k.digest()}
	case manifest.ContentList:
		entry.Content, err = k.list(size)
	default:
		k.Fail("unknown form of content %d", form)
	}
	if err = cmp.Or(k.Err, err); err != nil {
		return err
	}
	return cmp.Or(k.count(&k.files), k.writer.Add(&entry))
}

func (k *keptReader) digest() (d chunk.Digest) {
	for i := range d {
		d[i] = k.Byte()
	}
	return d
}

// list reads the pieces of a large file.
func (k *keptReader) list(size int64) (manifest.Content, error) {
	var list []span
	for range k.Number(maxSpans, "the number of a file's pieces") {
		told := k.Number(math.MaxInt64, "the length of a piece")
		piece := span{op: records.OpData, length: int64(told >> 1)}
		if told&1 != 0 {
			piece.op = records.OpHole
		} else {
			piece.digest = k.digest()
		}
		if k.Err == nil && (piece.length == 0 || piece.length > size) {
			k.Fail("pieces of a file are not as long as it is")
		}
		if n := len(list); n > 0 && piece.op == records.OpHole && list[n-1].op == records.OpHole {
			k.Fail("two holes of a file follow each other") // a few bytes here, and more on our disk
		}
		if k.Err != nil {
			return manifest.Content{}, k.Err
		}
		size -= piece.length
		list = append(list, piece)
	}
	if k.Err == nil && size != 0 {
		k.Fail("pieces of a file are not as long as it is")
	}
	if k.Err != nil {
		return manifest.Content{}, k.Err
	}
	return k.source.keepList(list)
}

// end compares the counts and then the digest of everything.
func (k *keptReader) end() error {
	if err := k.endTree(); err != nil {
		return err
	}
	directories, files := k.Number(math.MaxUint64, "the number of directories"),
		k.Number(math.MaxUint64, "the number of files")
	if k.Err == nil && (directories != k.directories || files != k.files) {
		k.Fail("%d directories and %d files came, %d and %d were sent", k.directories, k.files, directories,
			files)
	}
	if k.Err != nil {
		return k.Err
	}
	return k.In.End()
}
