package etcdstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/controller/store/etcdstore"
	"github.com/godwit/godwit/internal/controller/store/storetest"
)

func start(t *testing.T, directory string) *etcdstore.Embedded {
	t.Helper()
	server, err := etcdstore.StartEmbedded(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

func TestEmbedded(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() store.Store {
		server := start(t, t.TempDir())
		t.Cleanup(func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		})
		return func() store.Store { return server.Store() }
	})
}

// TestRestart: what was written is there after a restart, the next epoch is higher, and the leader that
// ended without resigning is not waited for.
func TestRestart(t *testing.T) {
	directory := t.TempDir()
	server := start(t, directory)
	first, err := server.Store().Campaign(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	change, err := store.Put(store.KindNode, "a", store.Node{Name: "a"})
	if err == nil {
		err = server.Store().Commit(t.Context(), first, change)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil { // without resigning
		t.Fatal(err)
	}
	server = start(t, directory)
	defer server.Close()
	second, err := server.Store().Campaign(t.Context(), "two")
	if err != nil {
		t.Fatal(err)
	}
	if second.Epoch() <= first.Epoch() {
		t.Errorf("epoch %d after %d", second.Epoch(), first.Epoch())
	}
	all, err := server.Store().Load(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	if err := second.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestTakeover: a leader that falls silent is replaced when its lease ends, and can write no more.
func TestTakeover(t *testing.T) {
	server := start(t, t.TempDir())
	defer server.Close()
	silent := server.Store()
	first, err := silent.Campaign(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	etcdstore.FallSilent(first)
	began := time.Now()
	second, err := server.Store().Campaign(t.Context(), "two")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a new leader after %s", time.Since(began).Round(time.Millisecond))
	<-first.Lost()
	change, err := store.Put(store.KindNode, "a", store.Node{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := silent.Commit(t.Context(), first, change); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("the silent leader writes: %v", err)
	}
	if err := second.Resign(t.Context()); err != nil {
		t.Error(err)
	}
}
