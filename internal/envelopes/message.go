package envelopes

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// MaxParts bounds the lists that a message may bring.
const MaxParts = 1 << 10

// Encode makes of a message of the state machine one for the wire.
func Encode(message migration.Message) (*api.Message, error) {
	encoded := &api.Message{Kind: string(message.Kind), Error: message.Error,
		Incarnation: message.Incarnation}
	if !message.At.IsZero() {
		encoded.AtUnixNanoseconds = message.At.UnixNano()
	}
	var err error
	if len(message.Problems) > 0 {
		encoded.ProblemsJson, err = json.Marshal(message.Problems)
	}
	if err == nil && len(message.Spans) > 0 {
		encoded.SpansJson, err = json.Marshal(message.Spans)
	}
	return encoded, err
}

// Decode is the other half of Encode.
func Decode(encoded *api.Message) (migration.Message, error) {
	message := migration.Message{Kind: migration.MessageKind(encoded.Kind), Error: encoded.Error,
		Incarnation: encoded.Incarnation}
	if encoded.AtUnixNanoseconds != 0 {
		message.At = time.Unix(0, encoded.AtUnixNanoseconds)
	}
	if err := DecodeList(encoded.ProblemsJson, &message.Problems); err != nil {
		return message, fmt.Errorf("message %.40q: %w", encoded.Kind, err)
	}
	if err := DecodeList(encoded.SpansJson, &message.Spans); err != nil {
		return message, fmt.Errorf("message %.40q: %w", encoded.Kind, err)
	}
	return message, nil
}

// DecodeList reads a list that another node has sent as JSON. An empty document is an empty list.
func DecodeList[T any](document []byte, list *[]T) error {
	if len(document) == 0 {
		return nil
	}
	if err := json.Unmarshal(document, list); err != nil {
		return err
	}
	if len(*list) > MaxParts {
		return fmt.Errorf("a list has %d entries, at most %d are allowed", len(*list), MaxParts)
	}
	return nil
}
