package identity

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"
)

func FuzzParseToken(f *testing.F) {
	f.Add(Token{}.String())
	f.Add("gw1.AAAA.BBBB")
	f.Add("gw1..")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if err != nil {
			return
		}
		again, err := ParseToken(token.String())
		if err != nil || again != token {
			t.Fatalf("%q was read as %q and then as %q, %v", text, token, again, err)
		}
	})
}

func FuzzParseNodes(f *testing.F) {
	f.Add(
		[]byte(
			`[{"name":"a","number":1,"address":"h:1","revision":1},{"name":"b","number":2,"address":"[::1]:2","revision":18446744073709551615}]`))
	f.Add([]byte(`[{"name":"a","number":9223372036854775808}]`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		nodes, err := ParseNodes(data)
		if err != nil {
			return
		}
		merged, _ := Merge(nodes, nil)
		sorted := slices.Clone(nodes)
		slices.SortFunc(sorted, func(a, b Node) int { return a.Number - b.Number })
		if !slices.Equal(merged, sorted) {
			t.Fatalf("merging with nothing changed %v to %v", nodes, merged)
		}
	})
}

func FuzzJoinMessage(f *testing.F) {
	var good bytes.Buffer
	if err := writeMessage(&good, joinRequest{Secret: []byte("s"), Name: "b", Address: "h:1",
		Time: time.Unix(1, 0)}); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'})
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	id := initNode(f, "a")
	server := &Server{identity: id, authority: id.Authority, nodes: func() []Node { return nil }}
	f.Fuzz(func(t *testing.T, data []byte) {
		var request joinRequest
		if readMessage(bytes.NewReader(data), &request) == nil {
			if _, _, err := server.join(request); err == nil {
				t.Fatal("admitted without a token")
			}
		}
		var reply certificateReply
		if readMessage(bytes.NewReader(data), &reply) == nil {
			_ = reply.refused()
			ca := id.trust.Load().base
			if _, err := checkReply(reply, ca, Peer{Name: "b", Number: 2}, ca.PublicKey); err == nil {
				t.Fatal("a certificate for a key that was never made")
			}
		}
	})
}

func FuzzPeerOf(f *testing.F) {
	id := initNode(f, "a")
	f.Add("godwit://node/a?number=1", "a.node.godwit")
	f.Add("godwit://node/a?number=1&number=2", "a.node.godwit")
	f.Add("godwit://node/../a?number=01", "a.node.godwit")
	f.Fuzz(func(t *testing.T, uri, dns string) {
		leaf := *id.Certificate().Leaf
		parsed, err := parseURI(uri)
		if err != nil {
			return
		}
		leaf.URIs, leaf.DNSNames = parsed, []string{dns}
		if peer, err := PeerOf(&leaf); err == nil &&
			(CheckName(peer.Name) != nil || dns != ServerName(peer.Name)) {
			t.Fatalf("%q, %q is taken for %+v", uri, dns, peer)
		}
	})
}

func FuzzState(f *testing.F) {
	f.Add(
		[]byte(
			`{"last_number":3,"nodes":[{"Name":"a","Number":1}],"tokens":[{"hash":"00","expires":"2020-01-01T00:00:00Z"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var state authorityState
		if json.Unmarshal(data, &state) != nil || state.LastNumber < 1 {
			return
		}
		state.forgetSpent(time.Unix(1e9, 0))
		_, _ = state.findToken([]byte("secret"), time.Unix(1e9, 0))
		if peer, err := state.place("fresh", false); err == nil && peer.Number > MaxNumber {
			t.Fatalf("number %d was given", peer.Number)
		}
	})
}

func FuzzParseRevocations(f *testing.F) {
	f.Add([]byte(`[{"number":2,"name":"b","version":1,"time":"2026-01-01T00:00:00Z","signature":"AAAA"}]`))
	f.Add(
		[]byte(
			`[{"number":2,"name":"b","version":18446744073709551615,"time":"2026-01-01T00:00:00Z","signature":"AAAA"}]`))
	f.Add([]byte(`null`))
	id := initNode(f, "a")
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := ParseRevocations(data)
		if err != nil {
			return
		}
		if fresh, _ := id.Revoke(list); len(fresh) > 0 {
			t.Fatalf("revocations that nobody has signed were taken: %v", fresh)
		}
		if len(list) > MaxNumber || versionOf(list) > maxRevocationVersion {
			t.Fatalf("%d entries, version %d", len(list), versionOf(list))
		}
	})
}

func FuzzVerifyNode(f *testing.F) {
	id := initNode(f, "a")
	entry, err := id.Entry()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(entry.Name, entry.Number, entry.Address, entry.Revision, entry.Certificate, entry.Signature)
	f.Add("a", 1, "h:1", uint64(1<<63), "AAAA", "AAAA")
	f.Fuzz(func(t *testing.T, name string, number int, address string, revision uint64, certificate,
		signature string) {
		node := Node{Name: name, Number: number, Address: address, Revision: revision,
			Certificate: certificate, Signature: signature}
		if id.VerifyNode(node) == nil && (node.Name != entry.Name || node.Address != entry.Address ||
			node.Number != entry.Number || node.Revision != entry.Revision) {
			t.Fatalf("taken: %+v", node)
		}
		_, _ = Merge([]Node{entry}, []Node{node})
	})
}

// FuzzSuccession checks that news of a rollover change nothing unless the authority has signed them.
func FuzzSuccession(f *testing.F) {
	first, other := initNode(f, "a"), initNode(f, "a")
	if err := other.BeginRollover(time.Hour, false, false); err != nil {
		f.Fatal(err)
	}
	begun, _ := other.Succession()
	if err := other.FinishRollover(true); err != nil {
		f.Fatal(err)
	}
	ended, _ := other.Succession()
	for _, seed := range []Succession{begun, ended, {}} {
		document, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(document)
	}
	before := first.Fingerprint()
	f.Fuzz(func(t *testing.T, data []byte) {
		heard, err := ParseSuccession(data)
		if err != nil {
			return
		}
		if retired, _ := first.Follow(heard); retired || first.Fingerprint() != before {
			t.Errorf("%s was taken", data)
		}
	})
}
