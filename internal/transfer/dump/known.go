package dump

import (
	"context"
	"errors"
	"io"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/transfer/state"
)

// SendKnown sends ahead what CRIU's images will have in them that hardly ever changes. Without that the
// freeze is longer, no more.
func (d *Dump) SendKnown(ctx context.Context) error {
	if !d.config.Memory.Ahead() {
		return nil // all of it is one freeze
	}
	known, err := d.findKnown(ctx)
	defer known.Release()
	if err != nil {
		d.config.Log.Warn("all changed pages of files are sent in the freeze", "container", d.config.Name,
			"error", err)
		return nil
	}
	return d.known.Send(known,
		func(content []byte) error { return d.config.Link.Send(KindKnown, "", content) })
}

func (d *Dump) findKnown(ctx context.Context) (*state.Known, error) {
	known := state.NewKnown(d.config.Layers())
	pids, err := d.config.Engine().Processes(ctx, d.config.Container)
	if err != nil {
		return known, err
	}
	return known, memory.ChangedFilePages(pids, known.Add)
}

// HearKnown takes what the target says of what was sent ahead.
func (d *Dump) HearKnown(answer string) error { return d.known.Hear(answer) }

// AwaitKnown waits until the target has what was sent ahead, or has said that it cannot have it.
func (d *Dump) AwaitKnown(ctx context.Context) error {
	refused, err := d.known.Await(ctx)
	if refused {
		d.config.Log.Warn("all changed pages of files are sent in the freeze: the target could not take "+
			"them from the image's layers; see its log",
			"container", d.config.Name)
	}
	return err
}

// takeKnown takes the pages that come ahead. If the layers of the image do not allow that, all go
// in the freeze.
func (r *Receiver) takeKnown(section io.Reader) (err error) {
	answer := state.HeardAll
	r.known, err = state.ReceiveKnown(section, r.config.Layers)
	if errors.Is(err, state.ErrLacking) {
		r.config.Log.Warn("changed pages of files all come in the freeze", "container", r.config.Name,
			"error", err)
		answer, err = state.HeardNone, nil
	}
	if err != nil {
		return err
	}
	return r.config.Answer(KindHeard, answer)
}
