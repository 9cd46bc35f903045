package player

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/await"
)

// TestPlayback plays a film whose pieces come in time, then one late.
func TestPlayback(t *testing.T) {
	began := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	var b playback
	for film := piece; film < buffered; film += piece {
		if b.got(began, film) != 0 || b.ahead(began, film) != 0 {
			t.Fatal("it plays, or waits, before it has enough")
		}
	}
	if b.got(began, buffered) != 0 {
		t.Error("it stood still before it began")
	}
	if wait := b.ahead(began, buffered).Seconds(); wait < 0.09 || wait > 0.11 {
		t.Errorf("it reads on after %v s", wait)
	}
	if still := b.got(at(1.9), buffered+piece); still != 0 {
		t.Errorf("it stood still for %v s, with 0.2 s to play", still)
	}
	if still := b.got(at(3), buffered+2*piece); still < 0.89 || still > 0.91 {
		t.Errorf("it stood still for %v s, want 0.9", still)
	}
	if still := b.got(at(3.05), buffered+3*piece); still != 0 {
		t.Errorf("it stood still again, for %v s", still)
	}
}

func TestFilm(t *testing.T) {
	film := make([]byte, 1<<20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(film)
		film[len(film)-1]++ // the next viewing gets another film
	}))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(conn.(*net.TCPConn), "film", 3600)
	if err == nil {
		err = p.Prepare(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Start(context.Background())
	await.True(t, "five answers", func() bool { return p.Answers().Count() >= 5 || p.Err() != nil })
	if err := p.Check(t.Context()); err == nil || p.Stops().Number > 0 {
		t.Errorf("another film was taken for the same, or it stopped: %+v", p.Stops())
	}
	_ = p.Close()
}
