package precopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// receive is a target that takes pages into a store until the connection ends.
func receive(data *stream.Session, store *memory.Store) error {
	var receiver *pipeline.Receiver
	var frame []byte
	for {
		section, err := data.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch section.Kind {
		case KindKey:
			incoming := Incoming{Data: data, Pages: store,
				Barrier: func(number uint64, missing []memory.TaskMap) error {
					return TellPlaced(data, number, missing)
				}}
			receiver, _, err = incoming.Receiver(section)
		case KindPages:
			frame, err = ReceiveFrame(section, frame, receiver)
		default:
			err = fmt.Errorf("a section %q", section.Kind)
		}
		if err != nil {
			return err
		}
	}
}

// connect connects a sender with a target.
func connect(t *testing.T, sender *Sender, store *memory.Store) {
	t.Helper()
	near, far := streamtest.Pair(t)
	go func() { _ = receive(far, store) }() // the source notices
	go func() {
		for {
			section, err := near.Next()
			if err == nil && section.Kind != KindPlaced {
				err = fmt.Errorf("a section %q", section.Kind)
			}
			if err == nil {
				err = sender.HearPlaced(section)
			}
			if err != nil {
				sender.Fail(err)
				return
			}
		}
	}()
	if err := sender.Begin(stream.NewSections(near, nil)); err != nil {
		t.Fatal(err)
	}
}

func newSenderAndStore(t *testing.T) (sender *Sender, store *memory.Store, sent *int64) {
	t.Helper()
	sent = new(int64)
	sender, err := NewSender(func(bytes int64) { *sent += bytes })
	if err != nil {
		t.Fatal(err)
	}
	if store, err = memory.NewStore(1 << 24); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return sender, store, sent
}

// TestPagesArrive: what is put is at the target after a barrier, also over a second connection with the
// sender that goes on.
func TestPagesArrive(t *testing.T) {
	sender, store, sent := newSenderAndStore(t)
	size := memory.PageSize()
	run := memory.Run{Task: 3, Address: 1 << 20, Pages: 2}
	content := bytes.Repeat([]byte("page"), 2*size/4)
	key := sender.Key()
	for round := range 2 {
		connect(t, sender, store)
		content[0] = byte(round)
		if err := sender.Put(run, content); err != nil {
			t.Fatal(err)
		}
		if err := sender.AwaitPlaced(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, size)
		if there, err := store.ReadPage(3, 1<<20, got); err != nil || !there || got[0] != byte(round) {
			t.Errorf("round %d: there %v, %v, begins with %d", round, there, err, got[0])
		}
		if !sender.Had(3, 1<<20, got) {
			t.Errorf("round %d: the sender does not know what the target has", round)
		}
		sender = sender.Again(func(bytes int64) { *sent += bytes })
	}
	if *sent != 2*2*int64(size) || sender.Key() != key {
		t.Errorf("%d bytes were counted, and the key is the same: %v", *sent, sender.Key() == key)
	}
}

// TestFault: a fault fails a run before it is sent.
func TestFault(t *testing.T) {
	sender, _, sent := newSenderAndStore(t)
	fault := errors.New("on purpose")
	sender.SetFault(func() error { return fault })
	run := memory.Run{Task: 1, Pages: 1}
	if err := sender.Put(run, make([]byte, memory.PageSize())); !errors.Is(err, fault) || *sent != 0 {
		t.Errorf("%v, %d bytes were counted", err, *sent)
	}
}

// TestAwaitEnds: whoever waits for the target does so no longer than the sender and its caller go on.
func TestAwaitEnds(t *testing.T) {
	sender, store, _ := newSenderAndStore(t)
	connect(t, sender, store)
	lost := errors.New("the link is lost")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	if _, err := sender.AwaitClaims(cancelled); !errors.Is(err, lost) {
		t.Errorf("claims: %v", err)
	}
	sender.Fail(lost)
	if _, err := sender.AwaitClaims(t.Context()); !errors.Is(err, lost) {
		t.Errorf("claims: %v", err)
	}
	if err := sender.AwaitPlaced(t.Context(), nil); !errors.Is(err, lost) {
		t.Errorf("a barrier: %v", err)
	}
}

// TestPagesThatStayMissing: pages are sent again once.
func TestPagesThatStayMissing(t *testing.T) {
	sender, store, _ := newSenderAndStore(t)
	connect(t, sender, store)
	missing := []memory.TaskMap{{Task: 1}}
	for number := range uint64(2) {
		sender.placed <- placedRound{number + 1, missing}
	}
	err := sender.AwaitPlaced(t.Context(), func([]memory.TaskMap) error { return nil })
	if !errors.Is(err, pipeline.ErrMissing) {
		t.Errorf("%v", err)
	}
}

// TestAnswersOfAPeer: what the target says out of turn, or what makes no sense, is refused.
func TestAnswersOfAPeer(t *testing.T) {
	sender, _, _ := newSenderAndStore(t)
	section := func(kind, name, content string) stream.Section {
		return stream.Section{Kind: kind, Name: name, Reader: strings.NewReader(content)}
	}
	var none bytes.Buffer
	if err := memory.EncodeMap(&none, nil); err != nil {
		t.Fatal(err)
	}
	if err := sender.HearPlaced(section(KindPlaced, "-1", none.String())); err == nil {
		t.Error("a barrier that is no number is taken")
	}
	if err := sender.HearPlaced(section(KindPlaced, "1", "?")); err == nil {
		t.Error("a map that is none is taken")
	}
	for number := range maxPlaced + 1 {
		err := sender.HearPlaced(section(KindPlaced, "1", none.String()))
		if (err == nil) != (number < maxPlaced) {
			t.Errorf("answer %d: %v", number, err)
		}
	}
	if err := sender.HearClaims(section(KindClaims, "", "?"), 10); err == nil {
		t.Error("claims that are none are taken")
	}
	if err := sender.HearClaims(section(KindClaims, "", ""), 10); err != nil {
		t.Errorf("no claims: %v", err)
	}
	if err := sender.HearClaims(section(KindClaims, "", ""), 10); err == nil {
		t.Error("claims are taken twice")
	}
}

// TestPagesOfAPeer: pages need a key, and a key is whole.
func TestPagesOfAPeer(t *testing.T) {
	if _, err := ReceiveFrame(strings.NewReader(""), nil, nil); !errors.Is(err, ErrNoKey) {
		t.Errorf("pages without a key: %v", err)
	}
	if _, _, err := (Incoming{}).Receiver(strings.NewReader("short")); err == nil {
		t.Error("a key of 5 bytes is taken")
	}
	if least := MaxClaims(0); least == 0 || MaxClaims(1<<30) <= 2*(1<<30)/uint64(memory.PageSize()) {
		t.Errorf("%d claims for nothing", least)
	}
}
