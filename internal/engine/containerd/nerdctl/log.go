package nerdctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// maxEntry bounds an entry of a log: nerdctl makes an entry of each line.
const maxEntry = 16 << 20

// Entry parses an entry of nerdctl's log.
func Entry(line []byte) (engine.LogEntry, error) {
	var entry struct {
		Log    string    `json:"log"`
		Stream string    `json:"stream"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(line, &entry); err != nil {
		return engine.LogEntry{}, fmt.Errorf("entry of its log: %w", err)
	}
	if entry.Stream != "stderr" {
		entry.Stream = "stdout"
	}
	return engine.LogEntry{Time: entry.Time, Stream: entry.Stream, Data: []byte(entry.Log)}, nil
}

// Entries assembles entries from pieces of a log: lines, or parts of long lines.
func Entries(emit func(engine.LogEntry) error) func(engine.LogEntry) error {
	var line []byte
	return func(piece engine.LogEntry) error {
		line = append(line, piece.Data...)
		if len(line) > maxEntry {
			return fmt.Errorf("an entry of its log is longer than %d bytes", maxEntry)
		}
		if !bytes.HasSuffix(line, []byte("\n")) {
			return nil
		}
		entry, err := Entry(line)
		line = line[:0]
		if err != nil {
			return err
		}
		return emit(entry)
	}
}
