package agent

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire/stream"
)

// FuzzDecodeMessage: a message of another node is refused, or says again what it has said.
func FuzzDecodeMessage(f *testing.F) {
	f.Add("reserved", "", []byte(`[{"What":"memory","Why":"too little"}]`), []byte(nil), int64(0))
	f.Add("running", "", []byte(nil), []byte(`[{"Step":"restore","Begin":"2026-01-01T00:00:00Z"}]`), int64(1))
	f.Add("failed", "no", []byte(`[null]`), []byte(`{`), int64(-1))
	f.Fuzz(func(t *testing.T, kind, text string, problems, spans []byte, at int64) {
		message, err := decodeMessage(&api.Message{Kind: kind, Error: text, ProblemsJson: problems,
			SpansJson: spans, AtUnixNanoseconds: at})
		if err != nil {
			return
		}
		if len(message.Problems) > maxMessageParts || len(message.Spans) > maxMessageParts {
			t.Fatalf("%d problems, %d spans", len(message.Problems), len(message.Spans))
		}
		encoded, err := encodeMessage(message)
		if err != nil {
			return // a time that JSON has no form for
		}
		if _, err := decodeMessage(encoded); err != nil {
			t.Errorf("what was decoded cannot be encoded and decoded: %v", err)
		}
	})
}

// FuzzFinal: the final marker of another node is refused, or compared with what has come.
func FuzzFinal(f *testing.F) {
	f.Add([]byte(`{"state":{"core-1.img":1}}`))
	f.Add([]byte(`{"state":{"":-1}}`))
	f.Add([]byte(`{"state":null}x`))
	f.Fuzz(func(t *testing.T, content []byte) {
		marker, err := readFinal(bytes.NewReader(content))
		if err != nil {
			return
		}
		images := state.NewReceiver(t.TempDir(), 1)
		if err := images.Check(marker.State); (err == nil) != (len(marker.State) == 0) {
			t.Errorf("nothing has come, and the marker says %v: %v", marker.State, err)
		}
	})
}

// FuzzPlatform: what a node says of itself is compared, and what is said of that is of a length
// that people read.
func FuzzPlatform(f *testing.F) {
	f.Add(
		[]byte(
			`{"architecture":"amd64","kernel":"6.1","criu":"4.2","page_bytes":4096,"cpu_features":["avx"],"cgroups":["cpu,cpuacct"]}`))
	f.Add([]byte(`{"architecture":"` + strings.Repeat("x", 1000) + `"}`))
	f.Add([]byte(`{"kernel":"999999999999999999999.-1","criu":"-"}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		var theirs migration.Platform
		if json.Unmarshal(document, &theirs) != nil {
			return
		}
		var said strings.Builder
		for _, pair := range [][2]migration.Platform{{theirs, {}}, {{}, theirs}, {theirs, theirs}} {
			problems, warnings := migration.Compare(pair[0], pair[1])
			for _, p := range append(problems, migration.CompareAnew(pair[0], pair[1])...) {
				said.WriteString(p.What + p.Why + p.Remedy)
			}
			said.WriteString(strings.Join(warnings, ""))
		}
		if said.Len() > 64<<10 {
			t.Errorf("%d bytes are said of a platform", said.Len())
		}
	})
}

// FuzzStageOffer: what another node offers to stage is refused, or of sizes that make sense.
func FuzzStageOffer(f *testing.F) {
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
		offer, definition, err := readStageOffer("a",
			stream.Section{Kind: kindOffer, Reader: bytes.NewReader(content)})
		if err != nil {
			return
		}
		if offer.MemoryBytes < 0 || stateLimit(offer) < 0 ||
			migration.CheckContainerID(definition.ID) != nil {
			t.Errorf("%+v of %q is taken", offer, definition.ID)
		}
	})
}
