package pinned

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"
)

func certificate(t *testing.T) (tls.Certificate, Fingerprint) {
	t.Helper()
	pair, err := NewCertificate("server", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	made, fingerprint, err := Parse(pair)
	if err != nil {
		t.Fatal(err)
	}
	return made, fingerprint
}

// TestClientAcceptsOnlyItsServer, before it has sent anything.
func TestClientAcceptsOnlyItsServer(t *testing.T) {
	right, want := certificate(t)
	wrong, _ := certificate(t)
	client, _ := certificate(t)
	for what, test := range map[string]struct {
		server tls.Certificate
		mine   func() *tls.Certificate
		fails  error
		shown  int
	}{
		"the right server":       {right, nil, nil, 0},
		"another server":         {wrong, nil, ErrWrongServer, 0},
		"a client's certificate": {right, func() *tls.Certificate { return &client }, nil, 1},
	} {
		t.Run(what, func(t *testing.T) {
			listener, err := tls.Listen("tcp", "127.0.0.1:0", ServerConfig(test.server))
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			shown := make(chan int, 1)
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_ = conn.(*tls.Conn).HandshakeContext(t.Context()) // the client judges
				shown <- len(conn.(*tls.Conn).ConnectionState().PeerCertificates)
			}()
			conn, err := tls.Dial("tcp", listener.Addr().String(), ClientConfig(want, test.mine))
			if !errors.Is(err, test.fails) {
				t.Fatalf("handshake: %v, want %v", err, test.fails)
			}
			if got := <-shown; test.fails == nil && got != test.shown {
				t.Errorf("the client showed %d certificates", got)
			}
			if conn != nil {
				conn.Close()
			}
		})
	}
}

func TestToken(t *testing.T) {
	_, fingerprint := certificate(t)
	token, err := NewToken(fingerprint)
	if err != nil {
		t.Fatal(err)
	}
	read, err := ParseToken(" " + token.String() + "\n")
	if err != nil || read != token || read.Server != fingerprint {
		t.Errorf("%v, %v", read, err)
	}
	if other, _ := NewToken(fingerprint); Hash(other.Secret()) == Hash(token.Secret()) {
		t.Error("two tokens have one secret")
	}
	text := token.String()
	for _, bad := range []string{"", "gwc1", "gwc1..", text[:len(text)-1], text + "A", "gw1" + text[4:],
		strings.Repeat(text, 3)} {
		if _, err := ParseToken(bad); err == nil || strings.Contains(err.Error(), token.Secret()) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	again, err := ParseFingerprint(fingerprint.String())
	if err != nil || again != fingerprint {
		t.Errorf("%v, %v", again, err)
	}
	for _, bad := range []string{"", "zz", fingerprint.String() + "00"} {
		if _, err := ParseFingerprint(bad); err == nil {
			t.Errorf("%q is a fingerprint", bad)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	token, err := NewToken(Fingerprint{1, 2, 3})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token.String())
	f.Add("gwc1.a.b")
	f.Fuzz(func(t *testing.T, text string) {
		read, err := ParseToken(text)
		if err == nil && read.String() != strings.TrimSpace(text) {
			t.Errorf("%q is read as %s", text, read)
		}
	})
}
