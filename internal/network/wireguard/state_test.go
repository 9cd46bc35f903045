package wireguard

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func peer(number byte, endpoint string) Peer {
	p := Peer{Key: Key{number}, Address: netip.AddrFrom4([4]byte{10, 88, number, 255})}
	if endpoint != "" {
		p.Endpoint = netip.MustParseAddrPort(endpoint)
	}
	return p
}

// TestDifference checks that settings that are right already stay untouched, and that a peer with a new
// endpoint starts again.
func TestDifference(t *testing.T) {
	have := State{Private: Key{9}, Port: 7444,
		Peers: []Peer{peer(1, "192.0.2.1:7444"), peer(2, "192.0.2.2:7444")}}
	if c := difference(have, have); !c.isNothing() {
		t.Errorf("of the same: %+v", c)
	}
	want := State{Private: Key{9}, Port: 7444, Peers: []Peer{peer(1, ""), peer(3, "192.0.2.3:7444")}}
	c := difference(have, want)
	if c.private != nil || c.port != nil || !slices.Equal(c.remove, []Key{{2}}) ||
		!slices.Equal(c.set, []Peer{peer(3, "192.0.2.3:7444")}) {
		t.Errorf("one gone, one come: %+v", c)
	}
	moved := State{Private: Key{8}, Port: 7445,
		Peers: []Peer{peer(1, "192.0.2.11:7444"), peer(2, "192.0.2.2:7444")}}
	c = difference(have, moved)
	if *c.private != (Key{8}) || *c.port != 7445 || !slices.Equal(c.remove, []Key{{1}}) ||
		!slices.Equal(c.set, moved.Peers[:1]) {
		t.Errorf("one elsewhere: %+v", c)
	}
}

// answerOf returns the answer to get=1 of a process with this state.
func answerOf(s State) string {
	set := strings.TrimPrefix(encodeSet(change{private: &s.Private, port: &s.Port, set: s.Peers}), "set=1\n")
	return strings.TrimSuffix(set, "\n") + "errno=0\n\n"
}

func TestDecodeGet(t *testing.T) {
	want := State{Private: Key{9}, Port: 7444,
		Peers: []Peer{peer(1, "192.0.2.1:7444"), peer(2, ""), peer(3, "[2001:db8::1]:7444")}}
	got, err := decodeGet(strings.NewReader(answerOf(want)))
	if err != nil || got.Private != want.Private || got.Port != want.Port ||
		!slices.Equal(got.Peers, want.Peers) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for what, text := range map[string]string{
		"an error":           "errno=-22\n\n",
		"an end too early":   "listen_port=7444\n",
		"no value":           "listen_port\n\n",
		"a short key":        "public_key=00\nerrno=0\n\n",
		"a wide allowed IP":  answerWith("allowed_ip=10.88.0.0/16"),
		"two allowed IPs":    answerWith("allowed_ip=10.88.1.1/32\nallowed_ip=10.88.1.2/32"),
		"a strange endpoint": answerWith("endpoint=nowhere"),
	} {
		if state, err := decodeGet(strings.NewReader(text)); err == nil {
			t.Errorf("%s: %+v", what, state)
		}
	}
}

func answerWith(lines string) string {
	return "public_key=" + strings.Repeat("01", keySize) + "\n" + lines + "\nerrno=0\n\n"
}

func FuzzDecodeGet(f *testing.F) {
	f.Add(answerOf(State{Private: Key{9}, Port: 7444, Peers: []Peer{peer(1, "192.0.2.1:7444")}}))
	f.Add("errno=1\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		state, err := decodeGet(strings.NewReader(text))
		if err != nil {
			return
		}
		if len(state.Peers) > maxPeers {
			t.Errorf("%d peers", len(state.Peers))
		}
	})
}
