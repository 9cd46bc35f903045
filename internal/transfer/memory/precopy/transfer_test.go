package precopy

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

const (
	testTask  = memory.Task(7)
	testStart = uint64(1 << 20)
	testPages = 20
)

// transfer sends two rounds of pages and the map, in which one more page comes later, over a connection. It
// returns what the pages were in the end, and the errors of both ends.
func (e *ends) transfer(t *testing.T, near, far net.Conn) (pages []byte, sent, received error) {
	t.Helper()
	source, target, err := sessions(t, near, far)
	if err != nil {
		return nil, err, err
	}
	ctx, giveUp := context.WithCancel(soon(t))
	defer giveUp()
	ended := make(chan error, 1)
	go func() {
		err := e.receive(ctx, target, Incoming{})
		if err != nil {
			_ = target.Close()
		}
		ended <- err
	}()
	go e.hear(source)
	size := memory.PageSize()
	first, second := content(testPages, 1), content(testPages, 1)
	copy(second[3*size+100:], "changed")   // a delta
	copy(second[5*size:], first[:size])    // a reference
	copy(second[7*size:], content(1, 200)) // anew
	out := stream.NewSections(source, nil)
	sent = e.sender.Begin(out)
	for _, data := range [][]byte{first, second} {
		run := memory.Run{Task: testTask, Address: testStart, Pages: testPages}
		if sent == nil {
			sent = e.sender.Put(run, data)
		}
		if sent == nil {
			sent = e.sender.AwaitPlaced(ctx, func([]memory.TaskMap) error {
				return errors.New("some are missing")
			})
		}
	}
	if sent == nil {
		end := testStart + uint64(testPages*size)
		all := mapOf(testTask, testStart, testPages+1)
		sent = e.sendMap(ctx, out, mapOf(testTask, end, 1), all)
	}
	if sent != nil {
		_ = source.Close()
	}
	return second, sent, <-ended
}

// TestMemoryArrives over a connection: in rounds, with what comes later left out.
func TestMemoryArrives(t *testing.T) {
	e := newEnds(t)
	near, far := net.Pipe()
	want, sent, received := e.transfer(t, near, far)
	if err := errors.Join(sent, received); err != nil {
		t.Fatal(err)
	}
	all := memory.Run{Task: testTask, Address: testStart, Pages: testPages}
	if err := holds(e.store, all, want); err != nil {
		t.Error(err)
	}
	if !e.receiver.Misses() || !e.receiver.Ahead() {
		t.Error("what comes later is not known")
	}
	stats := e.sender.Stats()
	if stats.DeltaPages == 0 || stats.ReferencePages == 0 {
		t.Errorf("it went as %+v", stats)
	}
	if had := make([]byte, memory.PageSize()); !e.sender.Had(testTask, testStart, had) ||
		!bytes.Equal(had, want[:len(had)]) {
		t.Error("the source does not know what the target has")
	}
}

// TestConnectionBreaks after each few bytes, so in and between all sections, in either direction: both ends
// notice, neither waits, and the target never takes the memory for complete.
func TestConnectionBreaks(t *testing.T) {
	near, far := net.Pipe()
	whole, answers := &breaking{Conn: near, left: -1}, &breaking{Conn: far, left: -1}
	_, sent, received := newEnds(t).transfer(t, whole, answers)
	if err := errors.Join(sent, received); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < whole.written(); at += 1 + at/40 { // closely at first, where the short sections are
		near, far := net.Pipe()
		_, sent, received := newEnds(t).transfer(t, &breaking{Conn: near, left: at}, far)
		if received == nil {
			t.Fatalf("after %d of %d bytes the target has all: the source says %v", at, whole.written(), sent)
		}
	}
	for at := 0; at < answers.written(); at++ {
		near, far := net.Pipe()
		_, sent, received := newEnds(t).transfer(t, near, &breaking{Conn: far, left: at})
		if sent == nil && received != nil {
			t.Errorf("after %d bytes of answers the source has sent all, the target says %v", at, received)
		}
	}
}

// TestTargetRefuses what makes no sense, section by section.
func TestTargetRefuses(t *testing.T) {
	key := make([]byte, 16)
	none := func(name string, content []byte) stream.Section {
		return stream.Section{Name: name, Reader: bytes.NewReader(content)}
	}
	for what, c := range map[string]struct {
		do   func(e *ends) error
		want string
	}{
		"pages before the key": {func(e *ends) error {
			_, err := e.receiver.Frame(bytes.NewReader(nil), nil)
			return err
		}, "before the key"},
		"the map before the key": {func(e *ends) error {
			return e.receiver.Map(soon(t), none("1", nil))
		}, "before the key"},
		"half a key": {func(e *ends) error {
			return e.receiver.Key(bytes.NewReader(key[:3]), Incoming{})
		}, "key of the pages"},
		"two keys": {func(e *ends) error {
			return errors.Join(e.receiver.Key(bytes.NewReader(key), Incoming{}),
				e.receiver.Key(bytes.NewReader(key), Incoming{}))
		}, "a second key"},
		"a barrier that is no number": {func(e *ends) error {
			return errors.Join(e.receiver.Key(bytes.NewReader(key), Incoming{}),
				e.receiver.Map(soon(t), none("x", nil)))
		}, "a barrier"},
		"a map that is none": {func(e *ends) error {
			return errors.Join(e.receiver.Key(bytes.NewReader(key), Incoming{}),
				e.receiver.Map(soon(t), none("1", []byte{1})))
		}, "EOF"},
		"a map of pages that come later that is none": {func(e *ends) error {
			return e.receiver.Remote(bytes.NewReader([]byte{1}))
		}, "come later"},
		"memory in a mode that has none": {func(*ends) error {
			r := NewReceiver()
			return errors.Join(r.Remote(bytes.NewReader(nil)), r.Key(bytes.NewReader(key), Incoming{}))
		}, "part of the execution state"},
	} {
		if err := c.do(newEnds(t)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestMapWaitsUntilGivenUp: the pages that a map is about may never come.
func TestMapWaitsUntilGivenUp(t *testing.T) {
	e := newEnds(t)
	if err := e.receiver.Key(bytes.NewReader(make([]byte, 16)), Incoming{}); err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancelCause(soon(t))
	why := errors.New("the engine has no patience")
	giveUp(why)
	err := e.receiver.Map(ctx, stream.Section{Name: "9", Reader: bytes.NewReader(nil)})
	if !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

// TestSourceRefuses answers to what it has not asked.
func TestSourceRefuses(t *testing.T) {
	sender := newEnds(t).sender
	placed := func(name string, content []byte) error {
		return sender.HearPlaced(stream.Section{Name: name, Reader: bytes.NewReader(content)})
	}
	if err := placed("x", nil); err == nil {
		t.Error("a barrier that is no number is taken")
	}
	if err := placed("1", []byte{1, 2}); err == nil {
		t.Error("a map that is none is taken")
	}
	for range maxPlaced {
		if err := placed("1000", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := placed("1000", nil); err == nil {
		t.Error("it takes answers without an end")
	}
	claims := func() error {
		return sender.HearClaims(stream.Section{Reader: bytes.NewReader(nil)}, 10)
	}
	if err := claims(); err != nil {
		t.Fatal(err)
	}
	if err := claims(); err == nil {
		t.Error("claims are taken twice")
	}
	if err := sender.HearClaims(stream.Section{Reader: bytes.NewReader([]byte{1})}, 10); err == nil {
		t.Error("claims that are none are taken")
	}
}

// TestAnswerOfAnotherBarrier is an error if the barrier has not been sent, and nothing if it is late.
func TestAnswerOfAnotherBarrier(t *testing.T) {
	e := newEnds(t)
	if err := e.sender.AddLane(nowhere{}); err != nil {
		t.Fatal(err)
	}
	e.sender.placed <- placedRound{barrier: 0}
	e.sender.placed <- placedRound{barrier: 9}
	if err := e.sender.AwaitPlaced(soon(t), nil); err == nil || !strings.Contains(err.Error(), "barrier 9") {
		t.Errorf("%v", err)
	}
	ctx, giveUp := context.WithCancelCause(soon(t))
	giveUp(nil)
	if err := e.sender.AwaitPlaced(ctx, nil); err == nil {
		t.Errorf("it was given up: %v", err)
	}
	e.sender.Close(os.ErrProcessDone)
	if err := e.sender.AwaitPlaced(soon(t), nil); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("the way has ended: %v", err)
	}
	if _, err := e.sender.AwaitClaims(soon(t)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("the way has ended, and claims are waited for: %v", err)
	}
}

// nowhere is a lane that takes everything.
type nowhere struct{}

func (nowhere) Send([]byte) error { return nil }
func (nowhere) Push() error       { return nil }

// TestFaultInARound happens before pages are taken.
func TestFaultInARound(t *testing.T) {
	counted := int64(0)
	sender, err := NewSender(func(bytes int64) { counted += bytes })
	if err != nil {
		t.Fatal(err)
	}
	if err := sender.AddLane(nowhere{}); err != nil {
		t.Fatal(err)
	}
	run := memory.Run{Task: testTask, Address: testStart, Pages: 2}
	sender.SetFault(func() error { return os.ErrInvalid })
	if err := sender.Put(run, content(2, 1)); !errors.Is(err, os.ErrInvalid) || counted != 0 {
		t.Errorf("%v, %d bytes are counted", err, counted)
	}
	sender.SetFault(nil)
	if err := sender.Put(run, content(2, 1)); err != nil || counted != 2*int64(memory.PageSize()) {
		t.Errorf("%v, %d bytes are counted", err, counted)
	}
}

// TestStagedCopyGoesOn: a migration goes on from what was staged, and a residual copy is of no use then.
func TestStagedCopyGoesOn(t *testing.T) {
	staged, err := memory.NewStore(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	run := memory.Run{Task: testTask, Address: testStart, Pages: 1}
	if err := staged.Put(run, content(1, 9)); err != nil {
		t.Fatal(err)
	}
	receiver := NewReceiver()
	if receiver.Ahead() || !receiver.TakeOver(staged) || receiver.TakeOver(staged) {
		t.Error("it is taken over not once")
	}
	store, err := receiver.Open(1 << 24)
	if err != nil || store != staged || !receiver.Ahead() {
		t.Fatalf("another store: %v", err)
	}
	if receiver.TakeOver(staged) {
		t.Error("a copy is taken over when there is memory already")
	}
	near, far := streamtest.Pair(t)
	told := make(chan error, 1)
	go func() {
		told <- receiver.Key(bytes.NewReader(make([]byte, 16)),
			Incoming{Data: far, Announced: true, Residual: &memory.Residual{}, Most: 10})
	}()
	section, err := near.Next()
	if err != nil || section.Kind != KindClaims {
		t.Fatalf("%+v, %v", section, err)
	}
	other := &Sender{claims: make(chan []claim, 1)}
	if err := errors.Join(other.HearClaims(section, 0), <-told); err != nil {
		t.Errorf("something is claimed of the residual copy: %v", err)
	}
	if err := errors.Join(holds(store, run, content(1, 9)), receiver.CloseStaged(), receiver.Discard(),
		receiver.Discard()); err != nil {
		t.Error(err)
	}
	unused := NewReceiver()
	store, err = memory.NewStore(1 << 20)
	if err != nil || !unused.TakeOver(store) {
		t.Fatalf("not taken over: %v", err)
	}
	if err := errors.Join(unused.CloseStaged(), unused.CloseStaged()); err != nil {
		t.Error(err)
	}
}

// TestBeforeIsKept: what was here of pages that come later outlives the store.
func TestBeforeIsKept(t *testing.T) {
	e := newEnds(t)
	near, far := net.Pipe()
	if _, sent, received := e.transfer(t, near, far); errors.Join(sent, received) != nil {
		t.Fatal(sent, received)
	}
	before, key := e.receiver.Before()
	if again, _ := e.receiver.Before(); before != again || key != e.sender.Key() {
		t.Error("it is another, or has another key")
	}
	err := errors.Join(e.receiver.Discard(), e.receiver.CloseBefore(), e.receiver.CloseBefore())
	if err != nil {
		t.Error(err)
	}
}
