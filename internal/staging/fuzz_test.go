package staging

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// FuzzOffer: what another node offers to stage is refused, or of sizes that make sense.
func FuzzOffer(f *testing.F) {
	definition, err := json.Marshal(engine.Definition{ID: strings.Repeat("a", 64), Name: "web"})
	if err != nil {
		f.Fatal(err)
	}
	for _, offer := range []*api.Offer{
		{Protocol: uint32(compat.Ours().Newest), DefinitionJson: definition, MemoryBytes: 1 << 20},
		{Protocol: uint32(compat.Ours().Newest), DefinitionJson: definition, MemoryBytes: -1},
		{Protocol: uint32(compat.Ours().Newest), DefinitionJson: []byte("{}"), KeepSeconds: 1e300},
		{},
	} {
		content, err := proto.Marshal(&api.Envelope{Offer: offer})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		offer, definition, err := readOffer("a",
			stream.Section{Kind: kindOffer, Reader: bytes.NewReader(content)})
		if err != nil {
			return
		}
		if offer.MemoryBytes < 0 || envelopes.MemoryLimit(offer) < 0 ||
			migration.CheckContainerID(definition.ID) != nil {
			t.Errorf("%+v of %q is taken", offer, definition.ID)
		}
	})
}
