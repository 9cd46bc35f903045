package precopy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
)

// ErrNoKey is of pages that come before their key.
var ErrNoKey = errors.New("pages arrived before the key that hashes them")

// Incoming is what a receiver of pages is made of.
type Incoming struct {
	Data      *stream.Session // over which the source hears of them
	Pages     *memory.Store
	Barrier   func(number uint64, missing []memory.TaskMap) error
	Announced bool             // the source was told of a residual copy, and may wait for its claims
	Residual  *memory.Residual // that the source may refer to; nil: none
	Most      uint64           // pages of it
}

// Receiver makes it with the key that comes in a section.
func (i Incoming) Receiver(section io.Reader) (*pipeline.Receiver, pipeline.Key, error) {
	config := pipeline.ReceiverConfig{Pages: i.Pages, Barrier: i.Barrier}
	if _, err := io.ReadFull(section, config.Key[:]); err != nil {
		return nil, config.Key, fmt.Errorf("key of the pages: %w", err)
	}
	if i.Residual != nil {
		config.Base = i.Residual
	}
	if i.Announced {
		if err := sendClaims(i.Data, config.Key, i.Residual, i.Most); err != nil {
			return nil, config.Key, err
		}
	}
	receiver, err := pipeline.NewReceiver(config)
	return receiver, config.Key, err
}

// ReceiveFrame takes a frame. How many pages come is bounded by what the store takes, however often
// they are sent.
func ReceiveFrame(section io.Reader, buffer []byte, receiver *pipeline.Receiver) ([]byte, error) {
	if receiver == nil {
		return buffer, ErrNoKey
	}
	frame, err := pipeline.ReadFrame(section, buffer)
	if err != nil {
		return frame, err
	}
	return frame, receiver.Frame(frame)
}

// TellPlaced tells the source that all before a barrier is in place. That it cannot be told is no
// error: the loss of the connection is noticed elsewhere, and in the freeze nobody waits for it.
func TellPlaced(data *stream.Session, number uint64, missing []memory.TaskMap) error {
	var content bytes.Buffer
	if err := memory.EncodeMap(&content, missing); err != nil {
		return err
	}
	if data.Begin(KindPlaced, strconv.FormatUint(number, 10)) != nil {
		return nil
	}
	_, err := data.Write(content.Bytes())
	if err == nil && data.End() == nil {
		_ = data.Push()
	}
	return nil
}
