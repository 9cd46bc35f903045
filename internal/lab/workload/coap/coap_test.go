package coap

import (
	"bytes"
	"net"
	"strconv"
	"testing"
)

func TestMessage(t *testing.T) {
	m := message{kind: confirmable, code: codePOST, id: 7, token: 9, path: "data", payload: []byte("500")}
	got, err := decode(m.encode())
	if err != nil || got.code != m.code || got.id != m.id || got.token != m.token ||
		!bytes.Equal(got.payload, m.payload) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range [][]byte{nil, {0}, {0x40, 1, 0, 0, 0xf0}, {0x44, 1, 0, 0}, {0x40, 1, 0, 0, 0xd0},
		{0x40, 1, 0, 0, 0x02, 1}} {
		if _, err := decode(bad); err == nil {
			t.Errorf("% x was accepted", bad)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(message{code: codeGET, path: "data"}.encode())
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = decode(b) })
}

// serve answers each POST with the number of posts, as modified by count; the first attempt of each request
// gets lost.
func serve(t *testing.T, count func(posts int) int) net.Conn {
	t.Helper()
	server, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		buffer := make([]byte, 2048)
		for posts := 1; ; posts++ {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			m, err := decode(buffer[:n])
			if err != nil {
				return
			}
			answer := message{kind: acknowledgement, code: 2<<5 | 4, id: m.id, token: m.token,
				payload: []byte(strconv.Itoa(count(posts)))}
			for range 2 { // the second one is a duplicate
				_, _ = server.WriteTo(answer.encode(), from)
			}
		}
	}()
	conn, err := net.Dial("udp4", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestPost(t *testing.T) {
	c := New(serve(t, func(posts int) int { return posts }))
	for range 3 {
		if err := c.Post(t.Context(), 10); err != nil {
			t.Error(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestPostSeesWhatIsLost(t *testing.T) {
	for name, count := range map[string]func(int) int{
		"lost": func(int) int { return 1 }, "doubled": func(posts int) int { return 2 * posts },
	} {
		c := New(serve(t, count))
		err := c.Post(t.Context(), 10)
		if name == "lost" {
			err = c.Post(t.Context(), 10)
		}
		if err == nil {
			t.Errorf("%s: not seen", name)
		}
		_ = c.Close()
	}
}
