package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/wire/stream"
)

// KindFinal is the last section, the final marker: after it the target may run the container.
const KindFinal = "final"

// Marker says that all has been sent, and how much of the execution state that was.
type Marker struct {
	State map[string]int64 `json:"state"` // bytes of each file
}

// Final sends the final marker, and returns when the kernel has it.
func (l *Link) Final(marker Marker) error {
	content, err := json.Marshal(marker)
	if err != nil {
		return err
	}
	if err := l.Section(KindFinal, "", content); err != nil {
		return err
	}
	return l.Data().Finish()
}

// Final takes the final marker, and is over when nothing more comes. check reports whether all is here.
func (t *Target) Final(section stream.Section, check func(Marker) error) error {
	marker, err := readMarker(section)
	if err != nil {
		return err
	}
	if err := check(marker); err != nil {
		return err
	}
	if _, err := t.data.Next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after the final marker: %w", errors.Join(err, errMoreComes))
	}
	return nil
}

// maxMarker bounds the final marker: it has a name and a number for each file of the state.
const maxMarker = 16 << 20

func readMarker(content io.Reader) (Marker, error) {
	var marker Marker
	data, err := io.ReadAll(io.LimitReader(content, maxMarker+1))
	if err == nil && len(data) > maxMarker {
		err = fmt.Errorf("it has more than %d bytes", maxMarker)
	}
	if err == nil {
		err = json.Unmarshal(data, &marker)
	}
	if err != nil {
		return marker, fmt.Errorf("final marker: %w", err)
	}
	return marker, nil
}

var errMoreComes = errors.New("the stream has not ended")
