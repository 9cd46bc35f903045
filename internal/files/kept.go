package files

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

	"github.com/godwit/godwit/internal/files/chunk"
)

// A mirror reports what it has adopted (adopt.go) to the source, in a stream like that of a round, with its
// own records:
//
//	tree       kind name           what follows is in this tree
//	directory  depth name          what follows is in this one; first the root, of depth 0, and each before those in it
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
	keptTree recordKind = iota + 64
	keptDirectory
	keptBelow
	keptFile
	keptEnd
)

// Key returns the secret with which the source hashes content.
func (s *Source) Key() chunk.Key { return s.key }

// keptWriter writes manifests for the source.
type keptWriter struct {
	encoder
	source             *Source
	directories, files uint64
}

func (k *keptWriter) tree(tree *sourceTree) error {
	k.kind(keptTree)
	k.text(string(tree.Kind))
	k.text(tree.Name)
	var part frame
	for in := tree.manifest.frames(); ; {
		err := in.next(&part)
		if errors.Is(err, io.EOF) {
			return k.write()
		}
		if err == nil {
			err = k.frame(&part)
		}
		if err != nil {
			return err
		}
	}
}

func (k *keptWriter) frame(part *frame) error {
	if part.first {
		k.directories++
		k.kind(keptDirectory)
		k.number(uint64(part.depth))
		k.text(part.name)
	}
	names := knownReader{part.entries}
	var entry known
	for {
		if _, ok := names.next(&entry); !ok {
			return nil
		}
		if entry.directory {
			k.kind(keptBelow)
			k.text(entry.name)
		} else if err := k.file(&entry); err != nil {
			return err
		}
		if err := k.write(); err != nil {
			return err
		}
	}
}

func (k *keptWriter) file(entry *known) error {
	k.files++
	k.kind(keptFile)
	k.text(entry.name)
	k.number(uint64(entry.stamp.size()))
	k.scratch = append(k.scratch, byte(entry.content.form))
	switch entry.content.form {
	case contentDigest:
		k.scratch = append(k.scratch, entry.content.digest[:]...)
	case contentList:
		list, err := k.source.loadList(entry.content)
		if err != nil {
			return err
		}
		k.number(uint64(len(list)))
		for _, piece := range list {
			if piece.op == opHole {
				k.number(uint64(piece.length)<<1 | 1)
				continue
			}
			k.number(uint64(piece.length) << 1)
			k.scratch = append(k.scratch, piece.digest[:]...)
		}
	}
	return nil
}

func (k *keptWriter) end() error {
	k.kind(keptEnd)
	k.number(k.directories)
	k.number(k.files)
	if err := k.write(); err != nil {
		return err
	}
	return k.out.finish()
}

// Resume receives, before the first round, what the mirror has adopted. Limits bound the bytes of the
// stream, and its names.
func (s *Source) Resume(ctx context.Context, r io.Reader, limits Limits) error {
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
	in, err := newBlockReader(r)
	if err != nil {
		return err
	}
	defer in.settle()
	k := &keptReader{decoder: decoder{in: in}, source: s, most: uint64(most),
		manifests: make(map[*sourceTree]*spool), seed: maphash.MakeSeed()}
	if err := k.all(ctx); err != nil {
		for _, manifest := range k.manifests {
			manifest.close()
		}
		return err
	}
	for tree, manifest := range k.manifests {
		tree.manifest = manifest
	}
	return nil
}

// keptReader makes manifests of a mirror's report.
type keptReader struct {
	decoder
	source             *Source
	most               uint64 // directories and files
	directories, files uint64
	manifests          map[*sourceTree]*spool
	seed               maphash.Seed

	writer frameWriter
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
		kind := recordKind(k.byte())
		if k.err == nil && len(k.levels) == 0 && kind != keptTree && kind != keptDirectory &&
			kind != keptEnd {
			k.fail("a record of kind %d comes outside of all directories", kind)
		}
		if k.err != nil {
			return k.err
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
			k.fail("unknown record %d", kind)
		}
		if err = cmp.Or(k.err, err); err != nil {
			return err
		}
	}
}

// tree begins a tree, which must be one of those to be sent.
func (k *keptReader) tree() error {
	if err := k.endTree(); err != nil {
		return err
	}
	kind, name := TreeKind(k.text(maxName, "a tree's kind")), k.text(maxName, "a tree's name")
	if k.err != nil {
		return k.err
	}
	i := slices.IndexFunc(k.source.trees,
		func(t *sourceTree) bool { return t.Kind == kind && t.Name == name })
	if i < 0 || k.manifests[k.source.trees[i]] != nil {
		return fmt.Errorf("%w: tree %.80q of kind %.80q is not to be sent, or comes twice", ErrCorrupt, name,
			kind)
	}
	k.writer = frameWriter{out: newSpool(k.source.config.Dir)}
	k.manifests[k.source.trees[i]] = k.writer.out
	return nil
}

// endTree ends the previous tree, if there is one.
func (k *keptReader) endTree() error {
	if k.writer.out == nil {
		return nil
	}
	if len(k.levels) == 0 {
		return fmt.Errorf("%w: a tree has no root", ErrCorrupt)
	}
	return errors.Join(k.writer.end(), k.upTo(0))
}

// upTo leaves directories, all of whose own directories must have come.
func (k *keptReader) upTo(depth int) error {
	for len(k.levels) > depth {
		if k.levels[len(k.levels)-1].below != 0 {
			return fmt.Errorf("%w: announced and received directories differ", ErrCorrupt)
		}
		k.levels = k.levels[:len(k.levels)-1]
	}
	return nil
}

func (k *keptReader) directory() error {
	depth, name := int(k.number(maxDepth-1, "a directory's depth")), k.text(maxName, "a file name")
	if k.err != nil {
		return k.err
	}
	if k.writer.out == nil || depth > len(k.levels) || (depth == 0) != (len(k.levels) == 0) {
		return fmt.Errorf("%w: a directory of depth %d stands where none may", ErrCorrupt, depth)
	}
	level := keptLevel{}
	if depth == 0 {
		if name != "" {
			return fmt.Errorf("%w: a tree's root has a name", ErrCorrupt)
		}
	} else {
		if err := validName(name); err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if err := errors.Join(k.writer.end(), k.upTo(depth)); err != nil {
			return err
		}
		above := &k.levels[depth-1]
		above.below -= maphash.String(k.seed, name)
		if level.path = above.path + 1 + len(name); level.path > maxPath {
			return fmt.Errorf("%w: a path of more than %d bytes", ErrCorrupt, maxPath)
		}
	}
	k.levels, k.last = append(k.levels, level), ""
	k.writer.begin(&frame{depth: depth, name: name, first: true, last: true})
	return k.count(&k.directories)
}

func (k *keptReader) count(n *uint64) error {
	if *n++; k.directories+k.files > k.most {
		return fmt.Errorf("%w: more than %d names", ErrCorrupt, k.most)
	}
	return nil
}

// next reads a name in the present directory.
func (k *keptReader) next() string {
	name := k.name()
	if k.err == nil && name <= k.last {
		k.fail("%q comes after %q", name, k.last)
	}
	k.last = name
	return name
}

func (k *keptReader) below() error {
	name := k.next()
	if k.err != nil {
		return k.err
	}
	k.levels[len(k.levels)-1].below += maphash.String(k.seed, name)
	return k.writer.add(&known{name: name, directory: true})
}

func (k *keptReader) file() error {
	entry := known{name: k.next()}
	size := int64(k.number(math.MaxInt64, "a file size"))
	binary.LittleEndian.PutUint32(entry.stamp[stampMode:], unix.S_IFREG)
	binary.LittleEndian.PutUint64(entry.stamp[stampLength:], uint64(size))
	var err error
	switch form := contentForm(k.byte()); form {
	case contentUnknown:
	case contentDigest:
		entry.content = content{form: contentDigest, digest: k.digest()}
	case contentList:
		entry.content, err = k.list(size)
	default:
		k.fail("unknown form of content %d", form)
	}
	if err = cmp.Or(k.err, err); err != nil {
		return err
	}
	return cmp.Or(k.count(&k.files), k.writer.add(&entry))
}

func (k *keptReader) digest() (d chunk.Digest) {
	for i := range d {
		d[i] = k.byte()
	}
	return d
}

// list reads the pieces of a large file.
func (k *keptReader) list(size int64) (content, error) {
	var list []span
	for range k.number(maxSpans, "the number of a file's pieces") {
		told := k.number(math.MaxInt64, "the length of a piece")
		piece := span{op: opData, length: int64(told >> 1)}
		if told&1 != 0 {
			piece.op = opHole
		} else {
			piece.digest = k.digest()
		}
		if k.err == nil && (piece.length == 0 || piece.length > size) {
			k.fail("pieces of a file are not as long as it is")
		}
		if n := len(list); n > 0 && piece.op == opHole && list[n-1].op == opHole {
			k.fail("two holes of a file follow each other") // a few bytes here, and more on our disk
		}
		if k.err != nil {
			return content{}, k.err
		}
		size -= piece.length
		list = append(list, piece)
	}
	if k.err == nil && size != 0 {
		k.fail("pieces of a file are not as long as it is")
	}
	if k.err != nil {
		return content{}, k.err
	}
	return k.source.keepList(list)
}

// end compares the counts and then the digest of everything.
func (k *keptReader) end() error {
	if err := k.endTree(); err != nil {
		return err
	}
	directories, files := k.number(math.MaxUint64, "the number of directories"),
		k.number(math.MaxUint64, "the number of files")
	if k.err == nil && (directories != k.directories || files != k.files) {
		k.fail("%d directories and %d files came, %d and %d were sent", k.directories, k.files, directories,
			files)
	}
	if k.err != nil {
		return k.err
	}
	return k.in.end()
}
