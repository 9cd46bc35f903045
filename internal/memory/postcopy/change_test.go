package postcopy

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
)

// past is the target's older copy: most pages differ a little from the current ones, some completely, some
// not at all, some are unknown.
type past struct {
	wrong bool // the target's copy differs from the source's idea of it
}

func (p past) known(task memory.Task, address uint64, page []byte) bool {
	fillPage(page, task, address)
	switch number := int(address) / len(page); number % 5 {
	case 0:
		return false
	case 1:
		random := rand.New(rand.NewPCG(address, 1))
		for i := range page {
			page[i] = byte(random.Uint32())
		}
	case 2:
		page[number%len(page)] ^= 0x55
		page[100] ^= 1
	}
	return true
}

func (p past) ReadPage(task memory.Task, address uint64, page []byte) (bool, error) {
	there := p.known(task, address, page)
	if p.wrong {
		page[7] ^= 2
	}
	return there, nil
}

// TestChanges sends pages as changes to the target's copy, and whole pages to a target that cannot apply
// changes, or that had something else.
func TestChanges(t *testing.T) {
	noLeaks(t)
	key, err := pipeline.NewKey()
	must(t, err)
	for name, c := range map[string]struct {
		before  Before
		key     pipeline.Key
		changed bool
		asks    bool // the server waits for the map
		stale   int  // times
	}{
		"changes": {before: past{}, key: key, asks: true, changed: true},
		// some are sent before the source knows that the target accepts them
		"changes, late":      {before: past{}, key: key, changed: true},
		"none at the target": {asks: true},
		"another content":    {before: past{wrong: true}, key: key, asks: true, stale: 1},
		"another key":        {before: past{}, asks: true, stale: 1},
	} {
		t.Run(name, func(t *testing.T) {
			maps := randomMaps(rand.New(rand.NewPCG(5, 5)), 3000)
			box := newContainer(t, maps)
			box.want(spots(maps)[1500])
			config := ServerConfig{Pages: &frozen{}, Remote: maps, Known: past{}.known, Key: key}
			if c.asks {
				config.Remote = nil
			}
			server, err := NewServer(config)
			must(t, err)
			client, err := NewClient(ClientConfig{Pages: box, Before: c.before, Key: c.key})
			must(t, err)
			source, target := both(t.Context(), server, client, link(t))
			for range c.stale {
				if !errors.Is(target, ErrStale) || source == nil {
					t.Fatalf("source %v, target %v", source, target)
				}
				source, target = both(t.Context(), server, client, link(t))
			}
			must(t, source)
			must(t, target)
			s, pages := client.Stats(), int64(pagesOf(maps))
			if box.missing() > 0 || c.asks && (s.ChangedPages > pages/2) != c.changed || !c.changed &&
				s.ChangedPages > 0 {
				t.Errorf("%d pages: %+v", pages, s)
			}
		})
	}
}

// givenBack is a target whose container has freed some pages, and with them their old copies.
type givenBack struct{ past }

func gone(address uint64) bool { return int(address)/memory.PageSize()%35 == 2 }

func (g givenBack) ReadPage(task memory.Task, address uint64, page []byte) (bool, error) {
	if gone(address) {
		clear(page)
		return true, nil
	}
	return g.past.ReadPage(task, address, page)
}

// TestChangesOfWhatIsGone: pages that are no longer needed end no connection, and a page that a thread
// waits for does.
func TestChangesOfWhatIsGone(t *testing.T) {
	noLeaks(t)
	key, err := pipeline.NewKey()
	must(t, err)
	maps := randomMaps(rand.New(rand.NewPCG(5, 5)), 3000)
	for name, needed := range map[string]bool{"not needed": false, "needed": true} {
		t.Run(name, func(t *testing.T) {
			box := newContainer(t, maps)
			for _, s := range spots(maps) {
				if gone(s.address) && !needed {
					box.needed--
				}
			}
			server, err := NewServer(ServerConfig{Pages: &frozen{}, Known: past{}.known, Key: key})
			must(t, err)
			client, err := NewClient(ClientConfig{Pages: box, Before: givenBack{}, Key: key,
				Every: 10 * time.Millisecond})
			must(t, err)
			source, target := both(t.Context(), server, client, link(t))
			if needed {
				if !errors.Is(target, ErrStale) || source == nil {
					t.Fatalf("source %v, target %v", source, target)
				}
				source, target = both(t.Context(), server, client, link(t))
			}
			must(t, source)
			must(t, target)
			if s := client.Stats(); s.ChangedPages == 0 || needed && box.missing() > 0 {
				t.Errorf("%+v, %d pages are missing", s, box.missing())
			}
		})
	}
}

// TestManyChanges: pages with few changes are not sent one by one.
func TestManyChanges(t *testing.T) {
	noLeaks(t)
	maps := flat(20000)
	box := newContainer(t, maps)
	server, err := NewServer(ServerConfig{Pages: &frozen{},
		Known: func(task memory.Task, address uint64, page []byte) bool {
			fillPage(page, task, address)
			page[0] ^= 1
			return true
		}})
	must(t, err)
	client, err := NewClient(ClientConfig{Pages: box, Every: time.Hour, Before: flipped{}})
	must(t, err)
	source, target := both(t.Context(), server, client, link(t))
	must(t, source)
	must(t, target)
	if s := server.Stats(); s.ChangedPages < 18000 || s.PushedBytes > 50*20000 {
		t.Errorf("%+v", s)
	}
}

// flipped returns all pages with one bit changed.
type flipped struct{}

func (flipped) ReadPage(task memory.Task, address uint64, page []byte) (bool, error) {
	fillPage(page, task, address)
	page[0] ^= 1
	return true, nil
}

// FuzzChanges: accepted changes give the pages that would have been sent, or are not applied.
func FuzzChanges(f *testing.F) {
	made, err := newChanger(past{}.known, pipeline.Key{})
	must(f, err)
	page := make([]byte, memory.PageSize())
	var seed []byte
	for n := range uint64(10) {
		fillPage(page, 3, n<<12)
		seed, _ = made.append(seed, 3, n<<12, page)
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		patch, err := newPatcher(past{}, pipeline.Key{})
		must(t, err)
		read := 0
		err = decodeChanges(bytes.NewReader(input), func(c change) error {
			read += changeHeader + len(c.delta)
			page, err := patch.apply(c)
			if err != nil && !errors.Is(err, ErrStale) {
				return err
			}
			if err == nil && patch.hasher.Page(page) != c.digest {
				t.Error("another page")
			}
			return nil
		})
		if err == nil && read != len(input) || err != nil && !errors.Is(err, ErrPeer) {
			t.Errorf("%d bytes of %d: %v", read, len(input), err)
		}
	})
}
