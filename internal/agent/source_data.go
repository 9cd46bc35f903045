package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/stream"
)

// stage opens the data connection, measures it, and sends the layers that the target has not.
func (s *source) stage(ctx context.Context) error {
	if err := s.openData(ctx); err != nil {
		return err
	}
	defer s.guard(ctx)()
	if err := s.measure(ctx); err != nil {
		return fmt.Errorf("measure the way to %s: %w", s.target.Name, err)
	}
	if err := s.sendImage(ctx); err != nil {
		return fmt.Errorf("send the image: %w", err)
	}
	if err := s.section(kindStaged, "", nil); err != nil {
		return err
	}
	return s.data.Flush()
}

func (s *source) openData(ctx context.Context) error {
	conn, err := wire.Dial(ctx, s.agent.id, s.target.Address, s.target.Name)
	if err != nil {
		return err
	}
	data, err := stream.Open(ctx, conn, stream.Hello{Migration: s.id(), Purpose: purposeMigration}, s.agent.streamOptions())
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	s.mu.Lock()
	s.data = data
	s.mu.Unlock()
	go s.listen(data)
	go func() {
		<-s.move.done
		_ = data.Close() // Nothing is under way on it any more.
	}()
	return nil
}

// guard ends the data connection when a step that uses it is interrupted: a write to a link that is gone would wait for
// as long as TCP does.
func (s *source) guard(ctx context.Context) (done func()) {
	stop := context.AfterFunc(ctx, func() {
		if s.control.current() == nil {
			_ = s.data.Close() // There is nobody to tell why.
			return
		}
		_ = s.data.Abort(plain(context.Cause(ctx)))
	})
	return func() { stop() }
}

// listen notices that the target ends the data connection, so that nobody waits for a link that is gone.
func (s *source) listen(data *stream.Session) {
	section, err := data.Next()
	if err == nil {
		err = fmt.Errorf("a section %.40q comes from the target", section.Kind)
	}
	s.move.tell(migration.PeerLost{Error: err.Error()})
}

// measure opens the connection's window and chooses the codec by what it carries.
func (s *source) measure(ctx context.Context) error {
	link, err := s.data.Warm(ctx, stream.Budget{})
	if err != nil {
		return err
	}
	s.agent.peers.noteLink(s.target.Name, link)
	choice := stream.Choose(link.BandwidthBitsPerSecond, s.agent.cores)
	if err := s.data.SetCodec(choice.Codec); err != nil {
		return err
	}
	s.move.tracker.measured(link, choice)
	return nil
}

func (s *source) sendImage(ctx context.Context) error {
	s.mu.Lock()
	reservation := s.reservation
	s.mu.Unlock()
	if reservation.GetMissingImage() {
		if err := s.sendConfig(); err != nil {
			return err
		}
	}
	for _, layer := range reservation.GetMissingLayers() {
		if err := s.sendLayer(ctx, layer); err != nil {
			return fmt.Errorf("layer %s: %w", layer, err)
		}
	}
	return nil
}

// sendConfig sends the image's configuration, and the names that it has here.
func (s *source) sendConfig() error {
	config, err := s.agent.images.Config(s.definition.ImageID)
	if err != nil {
		return err
	}
	if err := s.section(kindImage, "", config); err != nil {
		return err
	}
	found, err := s.agent.images.Resolve(s.definition.ImageID)
	if err != nil {
		return err
	}
	for _, name := range found.Names[:min(len(found.Names), maxImageNames)] {
		if err := s.section(kindName, name, nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *source) sendLayer(ctx context.Context, layer string) error {
	section, err := s.begin(kindLayer, layer)
	if err != nil {
		return err
	}
	if err := s.agent.images.ExportLayer(ctx, layer, section); err != nil {
		return err
	}
	return section.Close()
}

// section sends a small section whole.
func (s *source) section(kind, name string, content []byte) error {
	section, err := s.begin(kind, name)
	if err != nil {
		return err
	}
	if _, err := section.Write(content); err != nil {
		return err
	}
	return section.Close()
}

// begin starts a section; what is written to it counts as progress, and Close ends it.
func (s *source) begin(kind, name string) (io.WriteCloser, error) {
	if err := s.data.Begin(kind, name); err != nil {
		return nil, err
	}
	return &sentSection{s.data, s.move.tracker}, nil
}

type sentSection struct {
	data    *stream.Session
	tracker *tracker
}

func (s *sentSection) Write(p []byte) (int, error) {
	n, err := s.data.Write(p)
	s.tracker.transferred(int64(n))
	return n, err
}

func (s *sentSection) Close() error { return s.data.End() }

// sendState sends what is left of the state, the files, and the final marker. The permission for the marker is asked
// for first, so that the journal is written while the bytes leave.
func (s *source) sendState(ctx context.Context) error {
	defer s.guard(ctx)()
	permission := make(chan error, 1)
	go func() { permission <- s.move.mayEmitFinal(ctx) }()
	manifest, err := s.sendContent(ctx)
	if err = errors.Join(err, <-permission); err != nil {
		return err
	}
	if err := s.section(kindFinal, "", manifest); err != nil {
		return err
	}
	if err := s.data.Finish(); err != nil {
		return err
	}
	s.move.tracker.counted(s.data.Counters())
	return nil
}

func (s *source) sendContent(ctx context.Context) ([]byte, error) {
	sent, err := s.sender.rest()
	if err != nil {
		return nil, err
	}
	trees, err := s.agent.engine.Trees(ctx, s.definition.ID)
	if err != nil {
		return nil, err
	}
	section, err := s.begin(kindTrees, "")
	if err != nil {
		return nil, err
	}
	if err := files.SendTrees(ctx, section, trees, nil); err != nil {
		return nil, fmt.Errorf("files of the container: %w", err)
	}
	if err := section.Close(); err != nil {
		return nil, err
	}
	return json.Marshal(finalMarker{State: sent})
}
