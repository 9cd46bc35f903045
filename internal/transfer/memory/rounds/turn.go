package rounds

import (
	"errors"
	"sync"
)

// Turn lets a user, or the clock, end the rounds of a pre-copy: what has not been sent follows when
// the container was handed over.
type Turn struct {
	mu    sync.Mutex
	pages Running // whose rounds can be ended; nil: there are none now
	asked string  // why they shall end; empty: they need not
}

// ErrNoRounds is for who wants to end rounds that there are not.
var ErrNoRounds = errors.New("its memory is not being sent in rounds now: only a migration in mode " +
	"pre-copy or hybrid can be switched, before it is frozen")

// May says whose rounds can be ended from now on; nil: none.
func (t *Turn) May(pages Running) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pages = pages
}

// Ask ends the rounds, also the one that is under way.
func (t *Turn) Ask(why string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pages == nil {
		return ErrNoRounds
	}
	t.asked = why
	t.pages.Leave()
	return nil
}

// Wanted tells why the rounds shall end; empty: they need not.
func (t *Turn) Wanted() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked
}
