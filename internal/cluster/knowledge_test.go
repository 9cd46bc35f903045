package cluster

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
)

// talker is one side of a hello, reduced to its guests.
type talker struct {
	name   string
	lists  *guestLists
	guests []*api.Location
	sent   int // lists that were not left out
}

func newTalker(name string, guests int) *talker {
	one := &talker{name: name, lists: newGuestLists()}
	for i := range guests {
		one.guests = append(one.guests,
			&api.Location{Address: fmt.Sprintf("10.57.0.%d", i+1), Container: fmt.Sprint(name, i),
				Node: name})
	}
	return one
}

// tell sends one side's guests to the other, unless the message gets lost, and returns whether the other
// then has the list.
func (o *talker) tell(t *testing.T, other *talker, lost bool) bool {
	t.Helper()
	guests, digest, held := o.lists.say(other.name, o.guests)
	if len(guests) > 0 {
		o.sent++
	}
	if lost {
		return false
	}
	heard, whole := other.lists.hear(o.name, guests, digest, held)
	if whole && !slices.Equal(heard, o.guests) {
		t.Fatalf("%s hears %v of %s, which has %v", other.name, heard, o.name, o.guests)
	}
	return whole
}

// hello is a request and its answer, either of which may get lost.
func hello(t *testing.T, a, b *talker, requestLost, answerLost bool) (whole bool) {
	t.Helper()
	there := a.tell(t, b, requestLost)
	if requestLost {
		return false
	}
	back := b.tell(t, a, answerLost)
	return there && back
}

func TestGuestsAreSentOnce(t *testing.T) {
	a, b := newTalker("a", 3), newTalker("b", 2)
	for range 10 {
		if !hello(t, a, b, false, false) {
			t.Fatal("a list was left out that the other does not hold")
		}
	}
	if a.sent != 1 || b.sent > 2 {
		t.Errorf("lists were sent %d and %d times in 10 hellos that changed nothing", a.sent, b.sent)
	}
	slices.Reverse(a.guests) // the order means nothing, and the kept list is as good
	if guests, _, _ := a.lists.say("b", a.guests); len(guests) > 0 {
		t.Error("a list is sent again because of its order")
	}
	a.guests = a.guests[:1]
	if !hello(t, a, b, false, false) || a.sent != 2 {
		t.Errorf("the changed list was sent %d times", a.sent-1)
	}
	a.guests = nil
	if !hello(t, a, b, false, false) {
		t.Error("that there are no guests any more is not heard")
	}
}

// TestGuestsAfterLossAndRestart lets messages get lost, lists change and either side restart, in any order
// of three such events: after two successful hellos each side has the other's list.
func TestGuestsAfterLossAndRestart(t *testing.T) {
	events := map[string]func(a, b *talker){
		"nothing":      func(a, b *talker) { hello(t, a, b, false, false) },
		"request lost": func(a, b *talker) { hello(t, a, b, true, false) },
		"answer lost":  func(a, b *talker) { hello(t, a, b, false, true) },
		"a restarts":   func(a, _ *talker) { a.lists = newGuestLists() },
		"b restarts":   func(_, b *talker) { b.lists = newGuestLists() },
		"a changes":    func(a, _ *talker) { a.guests = a.guests[:max(len(a.guests)-1, 0)] },
		"b hellos":     func(a, b *talker) { hello(t, b, a, false, true) },
	}
	for first, one := range events {
		for second, two := range events {
			for third, three := range events {
				a, b := newTalker("a", 3), newTalker("b", 2)
				hello(t, a, b, false, false)
				one(a, b)
				two(a, b)
				three(a, b)
				hello(t, a, b, false, false)
				if !hello(t, a, b, false, false) {
					t.Errorf("%s, %s, %s: a list is still missing after two hellos", first, second, third)
				}
			}
		}
	}
}

// TestHostileGuests: a node cannot pass off another list as its own, nor make a node hold a list that was
// not sent.
func TestHostileGuests(t *testing.T) {
	a, b := newTalker("a", 2), newTalker("b", 2)
	hello(t, a, b, false, false)
	of := api.LocationsDigest(a.guests)
	for name, digest := range map[string][]byte{"unknown": make([]byte, 32), "short": {1},
		"long": make([]byte, 1<<16), "of another node": of} {
		lists := newGuestLists()
		lists.hear("a", a.guests, of, nil)
		if guests, whole := lists.hear("b", nil, digest, digest); whole {
			t.Errorf("%s: %v was taken", name, guests)
		}
		if guests, whole := lists.hear("b", b.guests, digest, nil); whole {
			t.Errorf("%s: %v was taken with a digest of something else", name, guests)
		}
		if guests, whole := lists.hear("a", nil, of, nil); !whole || len(guests) != 2 {
			t.Errorf("%s: what another node has said is gone", name)
		}
	}
	old := newGuestLists() // of a release without digests
	for _, guests := range [][]*api.Location{a.guests, nil} {
		if heard, whole := old.hear("a", guests, nil, nil); !whole || !slices.Equal(heard, guests) {
			t.Errorf("%v was heard of %v", heard, guests)
		}
	}
	if guests, _, _ := old.say("a", b.guests); len(guests) != len(b.guests) {
		t.Error("a node that knows no digests was not sent the list")
	}
}

// TestKnowledgeFollowsTheLists: repeated knowledge is encoded once, until it changes.
func TestKnowledgeFollowsTheLists(t *testing.T) {
	p := newMembers(t, "a", "b")[0]
	told := func() *knowledge {
		t.Helper()
		known, err := p.knowledge()
		if err != nil {
			t.Fatal(err)
		}
		return known
	}
	first := told()
	if told() != first {
		t.Error("it is put into words again, and nothing has changed")
	}
	p.Learn([]identity.Node{{Name: "c", Number: 3, Address: "192.0.2.3:7443"}})
	second := told()
	if bytes.Equal(second.digest, first.digest) || !strings.Contains(string(second.nodes), "192.0.2.3") {
		t.Errorf("a new node is not told: %s", second.nodes)
	}
	if _, err := p.id.RemoveNode(identity.Peer{Name: "b", Number: 2}); err != nil {
		t.Fatal(err)
	}
	third := told()
	if bytes.Equal(third.digest, second.digest) || !strings.Contains(string(third.revoked), `"b"`) {
		t.Errorf("a removal is not told: %s", third.revoked)
	}
}

// TestClaimsAreSentOnce: a node gets the claims of this node only when they change, and knows them at each
// hello all the same. A node of a release without digests always gets them.
func TestClaimsAreSentOnce(t *testing.T) {
	members := newMembers(t, "a", "b")
	a, b := members[0], members[1]
	running, heard, known := []uint64{7, 3}, [][]uint64{}, true
	a.claims = func() ([]uint64, bool) { return running, known }
	b.claimed = func(_ string, claims []uint64) { heard = append(heard, claims) }
	greet := func() (sent []uint64) {
		t.Helper()
		request, err := a.helloRequest("b")
		if err != nil {
			t.Fatal(err)
		}
		reply, err := b.Answer("a", request)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.hear("b", reply); err != nil {
			t.Fatal(err)
		}
		return request.Claims
	}
	for round, want := range [][]uint64{{7, 3}, nil, nil} {
		if sent := greet(); !slices.Equal(sent, want) {
			t.Errorf("hello %d brings %v, want %v", round, sent, want)
		}
	}
	running = []uint64{3, 7} // in another order
	if sent := greet(); len(sent) > 0 {
		t.Errorf("what has not changed is sent: %v", sent)
	}
	if len(heard) != 4 || len(heard[3]) != 2 {
		t.Errorf("claims are heard in %d of 4 hellos: %v", len(heard), heard)
	}
	running = []uint64{3}
	if sent := greet(); !slices.Equal(sent, running) || !slices.Equal(heard[len(heard)-1], running) {
		t.Errorf("claims have changed, and a hello brings %v", sent)
	}
	known = false
	if sent := greet(); len(sent) > 0 || len(heard) != 5 {
		t.Errorf("of claims that are not known %v is sent, and %v heard", sent, heard)
	}
	known = true
	if sent := greet(); !slices.Equal(sent, running) || len(heard) != 6 {
		t.Errorf("claims that are known again are sent as %v, and heard as %v", sent, heard)
	}
	old, err := b.Answer("a", &api.HelloRequest{Version: "0.1.0", Protocol: ourProtocol(),
		Claims: []uint64{9}})
	if err != nil || !slices.Equal(heard[len(heard)-1], []uint64{9}) || len(old.Claims) > 0 {
		t.Errorf("an older release: %v, %v, %v", old, heard[len(heard)-1], err)
	}
}
