package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/wire/stream"
)

// attach takes the data connection and begins to receive what is staged over it.
func (t *target) attach(ctx context.Context, data *stream.Session) (first bool) {
	t.once.Do(func() {
		first = true
		t.data = data
		go func() {
			t.stageErr = t.stage(ctx)
			close(t.staged)
		}()
	})
	return first
}

// stage receives the image and the layers.
func (t *target) stage(ctx context.Context) error {
	for {
		section, err := t.data.Next()
		if err != nil {
			return err
		}
		switch section.Kind {
		case kindImage:
			err = t.importImage(ctx, section)
		case kindName:
			err = t.importName(section)
		case kindLayer:
			err = t.importLayer(ctx, section)
		case kindStaged:
			return nil
		default:
			err = fmt.Errorf("a section %.40q comes before the freeze", section.Kind)
		}
		if err != nil {
			return fmt.Errorf("stage: %w", err)
		}
	}
}

func (t *target) importImage(ctx context.Context, section stream.Section) error {
	config, err := io.ReadAll(io.LimitReader(section, maxImageConfig+1))
	if err != nil {
		return err
	}
	if len(config) > maxImageConfig {
		return fmt.Errorf("the image's configuration is larger than %d bytes", maxImageConfig)
	}
	return t.agent.images.ImportConfig(ctx, t.definition.ImageID, config)
}

// importName gives the image that came a name, if it is free here. A peer does not name images that were here before.
func (t *target) importName(section stream.Section) error {
	t.mu.Lock()
	missing, known := t.reservation.GetMissingImage(), t.names
	t.names++
	t.mu.Unlock()
	if !missing || known >= maxImageNames {
		return fmt.Errorf("a name of an image comes that was not asked for: %.100q", section.Name)
	}
	return t.agent.images.ImportName(t.definition.ImageID, section.Name)
}

func (t *target) importLayer(ctx context.Context, section stream.Section) error {
	t.mu.Lock()
	reservation := t.reservation
	t.mu.Unlock()
	for _, layer := range reservation.GetMissingLayers() {
		if layer == section.Name {
			return t.agent.images.ImportLayer(ctx, layer, section)
		}
	}
	return fmt.Errorf("a layer comes that was not asked for: %.100q", section.Name)
}

// receive takes the state, the files and the final marker.
func (t *target) receive(ctx context.Context) error {
	if t.arrival == nil {
		return errors.New("nothing is prepared for the state that comes")
	}
	stop := context.AfterFunc(ctx, func() { _ = t.data.Abort(plain(context.Cause(ctx))) })
	defer stop()
	state := newStateReceiver(t.arrival.ImagesDir(), t.stateLimit())
	for {
		section, err := t.data.Next()
		if err != nil {
			return err
		}
		switch section.Kind {
		case kindState:
			err = state.piece(section.Name, section)
		case kindTrees:
			err = files.ReceiveTrees(ctx, section, t.arrival.TreePath, t.treesLimit())
		case kindFinal:
			return t.final(section, state)
		default:
			err = fmt.Errorf("a section %.40q comes in the freeze", section.Kind)
		}
		if err != nil {
			return err
		}
	}
}

// stateLimit bounds the memory that a peer can fill: what it announced, and half as much for what CRIU writes beside
// pages and for what was allocated since. The queues of a few busy connections can grow by this much at any time.
func (t *target) stateLimit() int64 {
	const least = 256 << 20
	return t.offer.MemoryBytes + t.offer.MemoryBytes/2 + least
}

// treesLimit bounds the disk that a peer can fill, as stateLimit does the memory.
func (t *target) treesLimit() files.Limits {
	const least = 64 << 20
	const entries, perEntry = 4 << 20, 512 // files may be empty; a disk has no more of them than one for some hundred bytes
	bytes := t.offer.TreesBytes + t.offer.TreesBytes/2 + least
	return files.Limits{Bytes: bytes, Entries: entries + bytes/perEntry}
}

func (t *target) final(section stream.Section, state *stateReceiver) error {
	var marker finalMarker
	if err := json.NewDecoder(io.LimitReader(section, 16<<20)).Decode(&marker); err != nil {
		return fmt.Errorf("final marker: %w", err)
	}
	if err := state.check(marker.State); err != nil {
		return err
	}
	if _, err := t.data.Next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after the final marker: %w", errors.Join(err, errMoreComes))
	}
	t.move.tracker.counted(t.data.Counters())
	return nil
}

var errMoreComes = errors.New("the stream has not ended")
