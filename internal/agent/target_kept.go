package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/chunk"
	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/transfer/kept"
	"github.com/godwit/godwit/internal/wire/stream"
)

// When a migration fails, the files that have come stay here for a while (package kept), and the next
// attempt goes on from them. The reservation says that there are some. The source then begins by
// its key (kindResume), to which the target answers by digests of what it has (kindKept).

// linkReader notes that it was the link that failed, and not what came over it.
type linkReader struct {
	io.Reader
	failed bool
}

func (l *linkReader) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	l.failed = l.failed || err != nil && !errors.Is(err, io.EOF)
	return n, err
}

// useKept finds what an earlier attempt has left, and tells how much that is.
func (t *target) useKept() (bytes int64) {
	one := t.agent.kept.Use(t.definition.ID)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept = one; one == nil {
		return 0
	}
	return one.Bytes
}

// takeUsed takes over what useKept has found.
func (t *target) takeUsed() *kept.Copy {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.kept
	t.kept = nil
	return one
}

// resumeFiles begins with what is here, and tells the source what that is.
func (t *target) resumeFiles(ctx context.Context, data *stream.Session, section io.Reader) error {
	var key chunk.Key
	if _, err := io.ReadFull(section, key[:]); err != nil {
		return fmt.Errorf("key of the files: %w", err)
	}
	f := &t.files
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mirror != nil {
		return errors.New("the source asked to reuse files of an earlier attempt after some files had " +
			"arrived")
	}
	if err := t.adopt(ctx); err != nil {
		return err
	}
	if err := data.Begin(kindKept, ""); err != nil {
		return err
	}
	told := &toldKept{Session: data}
	if err := f.mirror.Have(ctx, told, key, t.agent.moves.Dir(t.move.tracker.Spec.ID),
		t.agent.cores); err != nil {
		f.spoiled = !told.failed && ctx.Err() == nil
		return fmt.Errorf("tell what is here: %w", err)
	}
	return errors.Join(data.End(), data.Push())
}

// toldKept notes that it was the link that failed.
type toldKept struct {
	*stream.Session
	failed bool
}

func (k *toldKept) Write(p []byte) (int, error) {
	n, err := k.Session.Write(p)
	k.failed = k.failed || err != nil
	return n, err
}

// adopt makes the mirror of what is here. If that cannot be used it is gone, and the mirror has nothing.
func (t *target) adopt(ctx context.Context) error {
	t.files.mirror = t.newMirror()
	t.mu.Lock()
	one := t.kept
	t.mu.Unlock()
	if one == nil {
		return nil
	}
	trees, err := t.agent.kept.Trees(one, t.move.tracker.Spec.ID)
	if err == nil {
		err = t.files.mirror.Adopt(ctx, trees)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	t.agent.log.Warn("files of an earlier attempt cannot be used", "container", t.definition.Name, "error",
		err)
	if err := t.files.mirror.Undo(); err != nil {
		return err
	}
	t.agent.kept.End(t.takeUsed())
	t.files.mirror = t.newMirror()
	return nil
}

func (t *target) newMirror() *copies.Mirror {
	return copies.NewMirror(t.arrival.TreePath, t.treesLimit())
}

// keepFiles moves what has come to where the next attempt finds it. What it does not is removed by
// whoever discards the arrival, so no failure here is one of that.
func (t *target) keepFiles(ctx context.Context) {
	copies, spec := t.agent.kept, t.move.tracker.Spec
	defer copies.Release(t.takeUsed())
	if !copies.Keeps() {
		return
	}
	var one *kept.Copy
	err := t.agent.engines.EngineFor(t.definition).Salvage(ctx, t.definition.ID,
		func(tree files.Tree) (err error) {
			if entries, err := os.ReadDir(tree.Path); err != nil || len(entries) == 0 ||
				tree.Kind == files.Memory {
				return err
			}
			if one == nil {
				if one, err = copies.Begin(spec); err != nil || one == nil {
					return err
				}
			}
			return copies.Take(one, tree)
		})
	worth := false
	if err == nil && one != nil {
		worth, err = copies.Assess(one,
			func(path string) (files.Size, error) { return files.TreeSize(ctx, files.Tree{Path: path}) })
	}
	switch {
	case err != nil:
		t.agent.log.Warn("cannot keep the files of a failed migration", "migration", spec.ID, "error", err)
		copies.End(one)
	case worth:
		t.agent.log.Info("files of a failed migration are kept for the next attempt", "migration", spec.ID,
			"container", spec.Name, "bytes", one.Bytes)
		copies.Release(one)
	default:
		copies.End(one)
	}
}
