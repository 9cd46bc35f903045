package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/chunk"
	"github.com/godwit/godwit/internal/transfer/kept"
	"github.com/godwit/godwit/internal/wire/stream"
)

// When a migration fails, the files that have come stay here for a while (package kept), and the next
// attempt goes on from them. The reservation says that there are some. The source then begins by
// its key (kindResume), to which the target answers by digests of what it has (kindKept).

// UseKept finds what an earlier attempt has left, and tells how much that is.
func (r *Receiver) UseKept() (bytes int64) {
	one := r.config.Kept.Use(r.config.Migration.Container)
	r.using.Lock()
	defer r.using.Unlock()
	if r.used = one; one == nil {
		return 0
	}
	return one.Bytes
}

// takeUsed takes over what UseKept has found.
func (r *Receiver) takeUsed() *kept.Copy {
	r.using.Lock()
	defer r.using.Unlock()
	one := r.used
	r.used = nil
	return one
}

// End gives up the files of an earlier attempt if the container has moved here, or they are of no use.
func (r *Receiver) End(moved bool) {
	one := r.takeUsed()
	if moved || r.unusable() {
		r.config.Kept.End(one)
		r.config.Kept.Drop(r.config.Migration.Container)
		return
	}
	r.config.Kept.Release(one)
}

// resume begins with what is here, and tells the source what that is.
func (r *Receiver) resume(ctx context.Context, data *stream.Session, section io.Reader) error {
	var key chunk.Key
	if _, err := io.ReadFull(section, key[:]); err != nil {
		return fmt.Errorf("key of the files: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mirror != nil {
		return errors.New("the source asked to reuse files of an earlier attempt after some files had " +
			"arrived")
	}
	if err := r.adopt(ctx); err != nil {
		return err
	}
	if err := data.Begin(kindKept, ""); err != nil {
		return err
	}
	told := &toldKept{Session: data}
	if err := r.mirror.Have(ctx, told, key, r.config.Dir, r.config.Cores); err != nil {
		r.spoiled = !told.failed && ctx.Err() == nil
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
func (r *Receiver) adopt(ctx context.Context) error {
	r.mirror = r.newMirror()
	r.using.Lock()
	one := r.used
	r.using.Unlock()
	if one == nil {
		return nil
	}
	trees, err := r.config.Kept.Trees(one, r.config.Migration.ID)
	if err == nil {
		err = r.mirror.Adopt(ctx, trees)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	r.config.Log.Warn("files of an earlier attempt cannot be used", "container", r.config.Migration.Name,
		"error", err)
	if err := r.mirror.Undo(); err != nil {
		return err
	}
	r.config.Kept.End(r.takeUsed())
	r.mirror = r.newMirror()
	return nil
}

// Keep moves what has come to where the next attempt finds it. What it does not is removed by
// whoever discards the arrival, so no failure here is one of that.
func (r *Receiver) Keep(ctx context.Context) {
	copies, spec := r.config.Kept, r.config.Migration
	defer copies.Release(r.takeUsed())
	if !copies.Keeps() {
		return
	}
	var one *kept.Copy
	err := r.config.Arrival.Salvage(ctx,
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
		r.config.Log.Warn("cannot keep the files of a failed migration", "migration", spec.ID, "error", err)
		copies.End(one)
	case worth:
		r.config.Log.Info("files of a failed migration are kept for the next attempt", "migration", spec.ID,
			"container", spec.Name, "bytes", one.Bytes)
		copies.Release(one)
	default:
		copies.End(one)
	}
}
