package relief

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errTest = errors.New("it fails on purpose")

// container is one whose sockets are as a test says.
type container struct {
	asks  int           // times that its processes were asked for
	ends  int           // it has ended when they were asked for so often; 0: it runs on
	away  bool          // it is being moved away
	syncs int           // times that sizes were given back
	tight func() int    // sockets that need room
	fails error         // of both
	log   *bytes.Buffer // what is logged
}

// give lets time pass until nothing more is done, and returns how long that took.
func (c *container) give(ctx context.Context, t *testing.T) time.Duration {
	t.Helper()
	c.log = &bytes.Buffer{}
	began := time.Now()
	Container{
		ID: "one", Leaves: func() bool { return c.away }, Log: slog.New(slog.NewTextHandler(c.log, nil)),
		Processes: func(context.Context) ([]int, error) {
			if c.asks++; c.asks == c.ends {
				return nil, errTest
			}
			return []int{1}, nil
		},
	}.give(ctx, sockets{
		sync: func([]int) error {
			c.syncs++
			return c.fails
		},
		give: func([]int) (int, error) { return c.tight(), c.fails },
	})
	return time.Since(began)
}

// TestGive: sockets are looked at until none may need room, or for some minutes.
func TestGive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 3
		c := &container{tight: func() int { left--; return left }}
		if took := c.give(t.Context(), t); took != firstRoom+2*roomEvery || c.syncs != 1 || c.log.Len() > 0 {
			t.Errorf("%s, %d times, %s", took, c.syncs, c.log)
		}
		c = &container{tight: func() int { return 1 }}
		if took := c.give(t.Context(), t); took < roomPatience || took > roomPatience+roomEvery {
			t.Errorf("of a connection that is never read: %s", took)
		}
	})
}

// TestGiveEnds: nobody looks at a container that has ended, or goes elsewhere, or when the agent ends.
func TestGiveEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := func() int { return 1 }
		for what, c := range map[string]*container{
			"it ends": {ends: 1, tight: never}, "it leaves": {away: true, tight: never},
		} {
			if took := c.give(t.Context(), t); took != firstRoom || c.syncs > 0 {
				t.Errorf("%s: %s", what, took)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c := &container{tight: never}
		if took := c.give(ctx, t); took != 0 || c.asks > 0 {
			t.Errorf("when the agent ends: %s", took)
		}
	})
}

// TestGiveFails: what cannot be done is told once, and tried again.
func TestGiveFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &container{ends: 4, fails: errTest, tight: func() int { return 0 }}
		c.give(t.Context(), t)
		log := c.log.String()
		if c.asks != 4 || c.syncs != 1 || strings.Count(log, "may stall") != 1 ||
			strings.Count(log, "small segments") != 1 {
			t.Errorf("%d times, %s", c.asks, log)
		}
	})
}
