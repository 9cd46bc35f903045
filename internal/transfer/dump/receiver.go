package dump

import (
	"log/slog"

	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire/stream"
)

// ReceiverConfig is what a receiver is made of.
type ReceiverConfig struct {
	Name   string // of the container
	Dir    string // in memory, for what CRIU reads
	Limit  int64  // of the bytes that the source can fill
	Layers state.Layers
	// Answer tells the source something, over the first data connection.
	Answer func(kind, name string) error
	Log    *slog.Logger
}

// Receiver takes the execution state.
type Receiver struct {
	config ReceiverConfig
	images *state.Receiver
	known  []byte // pages to which pieces may refer; nil: none came
}

// NewReceiver makes a receiver to which nothing has come.
func NewReceiver(config ReceiverConfig) *Receiver {
	return &Receiver{config: config, images: state.NewReceiver(config.Dir, config.Limit)}
}

// Take takes a section. Not taken: the section is of something else, and nothing was read.
func (r *Receiver) Take(section stream.Section) (taken bool, err error) {
	switch section.Kind {
	case KindKnown:
		return true, r.takeKnown(section)
	case KindRefers:
		return true, r.images.Refers(section.Name, section, r.known)
	case KindState:
		return true, r.images.Piece(section.Name, section)
	}
	return false, nil
}

// Check reports whether all has come: so many bytes of each file.
func (r *Receiver) Check(sent map[string]int64) error { return r.images.Check(sent) }
