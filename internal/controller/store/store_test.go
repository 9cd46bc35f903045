package store_test

import (
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/controller/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) func() store.Store {
		shared := store.NewMemory()
		return func() store.Store { return shared }
	})
}

func TestKeys(t *testing.T) {
	for path, want := range map[string]bool{
		"node/a": true, "node/": false, "node": false, "nodes/a": false, "node/a/b": false, "": false,
		"node/" + strings.Repeat("x", 200): false,
	} {
		key, err := store.ParseKey(path)
		if (err == nil) != want || err == nil && key.String() != path {
			t.Errorf("%q: %v, %v", path, key, err)
		}
	}
}

// TestDecodeNamesTheRecord: the controller does not act on half of its state.
func TestDecodeNamesTheRecord(t *testing.T) {
	for _, bad := range []store.Record{
		{Key: store.Key{Kind: store.KindIntent, Name: "i7"}, Value: []byte(`{"priority":"high"}`)},
		{Key: store.Key{Kind: "novel", Name: "i7"}, Value: []byte(`{}`)},
	} {
		if _, err := store.Decode([]store.Record{bad}); err == nil || !strings.Contains(err.Error(), "i7") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestRoles: each role includes the lower ones, and an unknown one nothing. Tokens without a role are old.
func TestRoles(t *testing.T) {
	order := []store.Role{store.Viewer, store.Operator, store.Admin}
	for i, has := range order {
		for j, needed := range order {
			if has.Includes(needed) != (i >= j) {
				t.Errorf("%s includes %s: %t", has, needed, has.Includes(needed))
			}
		}
		if read, err := store.ParseRole(string(has)); err != nil || read != has {
			t.Errorf("%q, %v", read, err)
		}
		if has.Includes("king") || store.Role("king").Includes(has) || store.Role("").Includes(has) {
			t.Errorf("%s and an unknown role", has)
		}
	}
	if role, err := store.ParseRole(""); err != nil || role != store.Operator {
		t.Errorf("%q, %v", role, err)
	}
	if _, err := store.ParseRole("king"); err == nil {
		t.Error("an unknown role is accepted")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("intent/1", []byte(`{"id":"1","state":"queued"}`))
	f.Add("node/a", []byte(`{"labels":{"a":1}}`))
	f.Fuzz(func(t *testing.T, path string, value []byte) {
		key, err := store.ParseKey(path)
		if err != nil {
			return
		}
		state, err := store.Decode([]store.Record{{Key: key, Value: value}})
		if err == nil && len(state.Nodes)+len(state.Containers)+len(state.Intents)+len(state.Tokens)+
			len(state.Authorities)+len(state.KeyPairs) != 1 {
			t.Errorf("%s is not in the state", path)
		}
	})
}
