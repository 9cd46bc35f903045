package precopy

import (
	"bytes"
	"testing"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
)

// straight is a lane to a receiver in the same process.
type straight struct{ *pipeline.Receiver }

func (s straight) Send(frame []byte) error { return s.Frame(frame) }
func (s straight) Push() error             { return nil }

// TestMissingPagesAreSentAgain damages the target's store: what the target cannot make of a delta
// is sent again, and what is no more at the source does not keep it from being complete.
func TestMissingPagesAreSentAgain(t *testing.T) {
	pages, err := NewSender(func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.NewStore(1 << 24)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	receiver, err := pipeline.NewReceiver(pipeline.ReceiverConfig{
		Key: pages.key, Pages: store,
		Barrier: func(number uint64, missing []memory.TaskMap) error {
			pages.placed <- placedRound{number, missing}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := pages.AddLane(straight{receiver}); err != nil {
		t.Fatal(err)
	}
	size := memory.PageSize()
	content := bytes.Repeat([]byte("memory "), 3*size)[:3*size]
	content[size]++
	content[2*size]--
	run := memory.Run{Task: 7, Address: 1 << 20, Pages: 3}
	put := func() {
		t.Helper()
		if err := pages.Put(run, content); err != nil {
			t.Fatal(err)
		}
	}
	put()
	if err := pages.AwaitPlaced(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := store.Put(run, make([]byte, 3*size)); err != nil { // behind the pipeline's back
		t.Fatal(err)
	}
	content[5]++
	content[size+5]++
	content[2*size+5]++
	put()
	asked := 0
	err = pages.AwaitPlaced(t.Context(), func(missing []memory.TaskMap) error {
		asked++
		if len(missing) != 1 || len(missing[0].Areas) != 1 ||
			missing[0].Areas[0] != (memory.Area{Start: run.Address, Pages: 3}) {
			t.Errorf("missing are %+v", missing)
		}
		// the third has gone
		return pages.Put(memory.Run{Task: 7, Address: run.Address, Pages: 2}, content[:2*size])
	})
	if err != nil || asked != 1 || receiver.Complete() != nil {
		t.Errorf("asked %d times: %v, %v", asked, err, receiver.Complete())
	}
	clear(content[2*size:])
	got := make([]byte, size)
	for i := range 3 {
		there, err := store.ReadPage(7, run.Address+uint64(i*size), got)
		if err != nil || !there || !bytes.Equal(got, content[i*size:(i+1)*size]) {
			t.Errorf("page %d is wrong: %v", i, err)
		}
	}
}
