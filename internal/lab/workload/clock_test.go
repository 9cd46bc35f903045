package workload

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/await"
)

// ask lets a clock ask a server until it has answered a few times, or the clock sees an error.
func ask(t *testing.T, tell func(n int64) int64) *Clock {
	t.Helper()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, tell(asked.Add(1)))
	}))
	t.Cleanup(server.Close)
	c := NewClock(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}, "clock")
	c.Start(context.Background(), time.Millisecond)
	await.True(t, "five answers", func() bool { return c.Answers().Count() >= 5 || c.Err() != nil })
	return c
}

func TestClock(t *testing.T) {
	began := time.Now()
	c := ask(t, func(n int64) int64 { return n / 2 })
	for range 20 { // in addition to its own questions
		if err := c.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if gap := c.Answers().Gap(began); gap <= 0 || gap > time.Since(began) {
		t.Errorf("the longest gap was %v", gap)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestClockSeesTimeGoBack(t *testing.T) {
	if err := ask(t, func(n int64) int64 { return -n }).Close(); err == nil {
		t.Error("it has not seen that")
	}
}
