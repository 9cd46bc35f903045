package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// badLayers makes node a fetch nonexistent or invalid layers, and asks it for layers that it does not have.
func (w *world) badLayers(t *testing.T, id *identity.Identity, peer api.PeerClient) {
	const nobodys = "sha256:0000000000000000000000000000000000000000000000000000000000000001"
	fetch := func(request *api.FetchRequest) error {
		replies, err := peer.Fetch(t.Context(), request)
		for err == nil {
			_, err = replies.Recv()
		}
		return err
	}
	w.unchanged(t, func() {
		many := make([]*api.Layer, 257)
		for i := range many {
			many[i] = &api.Layer{DiffId: nobodys}
		}
		for what, request := range map[string]*api.FetchRequest{
			"a path":             {Layers: []*api.Layer{{DiffId: "../../../etc"}}},
			"a negative size":    {Layers: []*api.Layer{{DiffId: nobodys, ArchiveBytes: -1}}},
			"an impossible size": {Layers: []*api.Layer{{DiffId: nobodys, StoredBytes: 1 << 60}}},
			"too many":           {Layers: many},
			"too many names":     {ConfigJson: []byte("{}"), Names: make([]string, 100)},
		} {
			if err := fetch(request); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", what, err)
			}
		}
		err := fetch(&api.FetchRequest{Layers: []*api.Layer{{DiffId: nobodys, ArchiveBytes: 1 << 49}}})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("more than the disk holds: %v", err)
		}
		if err := fetch(&api.FetchRequest{Image: nobodys, ConfigJson: []byte("{}")}); err == nil ||
			errors.Is(err, io.EOF) {
			t.Errorf("a configuration with another digest: %v", err)
		}
		err = fetch(&api.FetchRequest{Transfer: "0123456789abcdef",
			Layers: []*api.Layer{{DiffId: nobodys, ArchiveBytes: 1 << 20}}})
		if err == nil || !strings.Contains(err.Error(), "no source can send") {
			t.Errorf("a layer that nobody has: %v", err)
		}
		if _, err := peer.Layers(t.Context(),
			&api.LayersRequest{DiffIds: make([]string, 257)}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("asked for too many layers: %v", err)
		}
		w.badWants(t, id, nobodys)
	})
}

// badWants requests layers over data connections.
func (w *world) badWants(t *testing.T, id *identity.Identity, nobodys string) {
	want := func(diffIDs ...string) []byte {
		document, err := json.Marshal(diffIDs)
		if err != nil {
			t.Fatal(err)
		}
		return document
	}
	theirs := w.find(t, w.at, container).Definition.Layers[0]
	hello := stream.Hello{Purpose: "layers", Migration: "0123456789abcdef"}
	if _, err := stream.Open(t.Context(), w.secured(t, id, "godwit-data/1"), hello,
		stream.Options{}); err == nil {
		t.Error("a transfer that does not exist is served")
	}
	hello.Migration = ""
	for what, sections := range map[string][]sent{
		"a layer that is not there": {{"want", "", want(nobodys)}},
		"a path":                    {{"want", "", want("../../../etc")}},
		"no list":                   {{"want", "", []byte("x")}},
		"too many":                  {{"want", "", want(make([]string, 257)...)}},
		"too long": {{"want", "",
			[]byte(fmt.Sprintf("%q", strings.Repeat("x", 1<<20)))}},
		"parts of one that is not there": {{"cut", nobodys, nil}},
		"parts of a path":                {{"cut", "../../../etc", nil}},
		"parts that are not there": {{"cut", theirs, nil},
			{"runs", "", []byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}}},
		"half a run":                      {{"cut", theirs, nil}, {"runs", "", []byte{1}}},
		"too many runs":                   {{"cut", theirs, nil}, {"runs", "", make([]byte, 1<<20)}},
		"something else in place of runs": {{"cut", theirs, nil}, {"want", "", want(theirs)}},
	} {
		data, err := stream.Open(t.Context(), w.secured(t, id, "godwit-data/1"), hello, stream.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sections {
			if err == nil {
				err = data.Begin(s.kind, s.name)
			}
			if err == nil {
				_, err = data.Write(s.content)
				err = errors.Join(err, data.End(), data.Flush())
			}
		}
		for err == nil {
			var section stream.Section
			if section, err = data.Next(); err == nil {
				_, err = io.Copy(io.Discard, section)
			}
		}
		if errors.Is(err, io.EOF) {
			t.Errorf("%s: it is served", what)
		}
		_ = data.Close()
	}
}

// sent is a section that a peer sends.
type sent struct {
	kind, name string
	content    []byte
}
