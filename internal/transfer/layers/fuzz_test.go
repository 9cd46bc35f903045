package layers

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/files/parts"
	"github.com/godwit/godwit/internal/wire/stream"
)

// FuzzLayersWanted: what another node wants of layers is refused, or bounded.
func FuzzLayersWanted(f *testing.F) {
	f.Add([]byte(`["sha256:aa"]`), 4)
	f.Add([]byte(`[`+strings.Repeat(`"",`, Max)+`""]`), 0)
	f.Add([]byte{1, 2, 3}, 1<<20)
	f.Fuzz(func(t *testing.T, content []byte, parted int) {
		wanted, err := readWant(stream.Section{Kind: kindWant, Reader: bytes.NewReader(content)})
		if err == nil && len(wanted) > Max {
			t.Errorf("%d layers are wanted", len(wanted))
		}
		if parted < 0 || parted > 1<<24 {
			return
		}
		runs, err := readRuns(stream.Section{Kind: kindRuns, Reader: bytes.NewReader(content)}, parted)
		if err == nil && len(runs) > parts.MaxRuns {
			t.Errorf("%d runs of parts are wanted", len(runs))
		}
	})
}

// FuzzLayersOffered: what another node says that it has of layers is refused, or makes sense.
func FuzzLayersOffered(f *testing.F) {
	for _, layers := range [][]*api.Layer{{{DiffId: "sha256:aa", ArchiveBytes: 1, StoredBytes: 1}},
		{{ArchiveBytes: -1}}, {nil}} {
		content, err := proto.Marshal(&api.LayersReply{Layers: layers})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		var reply api.LayersReply
		if proto.Unmarshal(content, &reply) != nil || Check(reply.Layers) != nil {
			return
		}
		for _, layer := range reply.Layers {
			if layer.ArchiveBytes < 0 || layer.StoredBytes < 0 {
				t.Errorf("%+v is taken", layer)
			}
		}
	})
}
