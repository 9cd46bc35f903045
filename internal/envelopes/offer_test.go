package envelopes

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestProtocol: an offer has a protocol that is spoken here.
func TestProtocol(t *testing.T) {
	if err := CheckProtocol("a", &api.Offer{Protocol: uint32(compat.Ours().Newest)}); err != nil {
		t.Error(err)
	}
	err := CheckProtocol("a", &api.Offer{Protocol: uint32(compat.Ours().Newest) + 1})
	if !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "node a") {
		t.Errorf("a protocol of the future: %v", err)
	}
}

// TestSizes: sums of sizes do not overflow.
func TestSizes(t *testing.T) {
	for _, good := range []*api.Offer{{}, {MemoryBytes: 1 << 50, TreesBytes: 1 << 50}} {
		if err := CheckSizes(good); err != nil || MemoryCopies(good)*MemoryLimit(good) <= 0 {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []*api.Offer{{MemoryBytes: -1}, {TreesBytes: -1}, {MemoryBytes: 1<<50 + 1},
		{TreesBytes: 1 << 62}} {
		if err := CheckSizes(bad); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestMemoryCopies: memory that does not come is needed once, for what is started.
func TestMemoryCopies(t *testing.T) {
	if n := MemoryCopies(&api.Offer{Mode: string(migration.Restart)}); n != 1 {
		t.Errorf("mode restart: %d", n)
	}
	if n := MemoryCopies(&api.Offer{Mode: string(migration.PreCopy)}); n != CopiesAtTarget {
		t.Errorf("mode pre-copy: %d", n)
	}
}

// TestDefinition: the ID and the name of a container become names of files.
func TestDefinition(t *testing.T) {
	id := strings.Repeat("a", 64)
	for name, test := range map[string]struct {
		definition any
		good       bool
	}{
		"good":          {engine.Definition{ID: id, Name: "web"}, true},
		"no definition": {[]string{"web"}, false},
		"no ID":         {engine.Definition{Name: "web"}, false},
		"a path":        {engine.Definition{ID: id, Name: "../web"}, false},
	} {
		document, err := json.Marshal(test.definition)
		if err != nil {
			t.Fatal(err)
		}
		definition, err := Definition(&api.Offer{DefinitionJson: document})
		if (err == nil) != test.good || err != nil && !errors.Is(err, api.ErrInvalid) ||
			err == nil && definition.ID != id {
			t.Errorf("%s: %+v, %v", name, definition, err)
		}
	}
}
