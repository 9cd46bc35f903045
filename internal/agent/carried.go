package agent

import (
	"github.com/godwit/godwit/internal/transfer/dump"
	"github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

// carried says what data connections have carried, by what that was.
func carried(counters stream.Counters) progress.Carried {
	sent := func(kinds ...string) (bytes int64) {
		for _, kind := range kinds {
			bytes += int64(counters.Sent[kind].WireBytes)
		}
		return bytes
	}
	c := progress.Carried{
		Pages: sent(precopy.KindPages), Known: sent(dump.KindKnown),
		State: sent(dump.KindState, dump.KindRefers),
		Files: sent(files.KindRound), Layers: sent(layers.KindLayer, layers.KindParts, layers.KindPieces),
		Metadata:     sent(link.KindFinal, link.KindStaged, precopy.KindKey, precopy.KindMap),
		Uncompressed: progress.Uncompressed(counters),
	}
	for _, kind := range []string{dump.KindState, dump.KindKnown, dump.KindRefers} {
		c.StateRaw += int64(counters.Sent[kind].RawBytes)
	}
	return c
}
