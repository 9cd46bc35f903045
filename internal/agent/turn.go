package agent

import (
	"errors"
	"sync"

	"github.com/godwit/godwit/internal/memory"
)

// turn lets a user, or the clock, end the rounds of a pre-copy: what has not been sent follows when
// the container was handed over.
type turn struct {
	mu    sync.Mutex
	pages *memory.Source // whose rounds can be ended; nil: there are none now
	asked string         // why they shall end; empty: they need not
}

// errNoRounds is for who wants to end rounds that there are not.
var errNoRounds = errors.New("its memory is not being sent in rounds now: only a migration in mode " +
	"pre-copy or hybrid can be switched, before it is frozen")

// may says whose rounds can be ended from now on.
func (t *turn) may(pages *memory.Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pages = pages
}

// ask ends the rounds, also the one that is under way.
func (t *turn) ask(why string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pages == nil {
		return errNoRounds
	}
	t.asked = why
	t.pages.Leave()
	return nil
}

// wanted tells why the rounds shall end; empty: they need not.
func (t *turn) wanted() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked
}
