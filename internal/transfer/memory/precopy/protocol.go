package precopy

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire/stream"
)

// The sections that carry memory, in the order in which they come.
const (
	KindKey    = "key"   // content: pipeline.Key
	KindPages  = "pages" // content: a frame of pages, on any data connection of the migration
	KindRemote = "late"  // which pages come after the restore; before the map
	KindMap    = "map"   // which pages there are; name: number of the barrier before which all of them came
	// The other way:
	KindClaims = "claims" // content: digests of pages of a residual copy, before anything else
	// name: number of a barrier, before which all pages are in place; content: those that are
	// missing
	KindPlaced = "placed"
)

// PurposePages is what a connection is for that carries nothing but pages.
const PurposePages = "pages"

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

// placedRound is what the target says about a barrier.
type placedRound struct {
	barrier uint64
	missing []memory.TaskMap
}

// readPlaced reads what TellPlaced has told.
func readPlaced(section stream.Section) (placedRound, error) {
	number, err := strconv.ParseUint(section.Name, 10, 64)
	if err != nil {
		return placedRound{}, fmt.Errorf("the target reported an invalid barrier %.40q", section.Name)
	}
	missing, err := memory.DecodeMap(section)
	return placedRound{number, missing}, err
}
