package frozen

import (
	"context"
	"errors"
	"sync"

	"github.com/godwit/godwit/internal/guard"
)

// permit keeps the final marker here while the frozen copy is not known to be held. The
// migration may be in doubt by then: the journal says that the marker may have left while the copy
// is still being held. An agent that was started again does not know, and its permit says that the
// marker has left.
type permit struct {
	mu       sync.Mutex
	withheld bool // the marker has not left
	denied   bool // and must not: the copy may have run, or the send has failed
	released bool // the marker has been given to the stream
}

// withhold says that the marker has not left.
func (p *permit) withhold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withheld = true
}

// release lets the marker leave, unless that was denied.
func (p *permit) release() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withheld, p.released = p.denied, !p.denied
	return p.released
}

// given reports whether the marker has been given to the stream, in which it may still wait.
func (p *permit) given() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.released
}

// deny keeps the marker here for good. Not ok: the marker may have left.
func (p *permit) deny() (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.denied = p.withheld
	return p.withheld
}

// Sending is what SendFinal sends.
type Sending struct {
	// Content sends what is left; the final marker comes after it.
	Content func(ctx context.Context) error
	// Permit asks whether the marker may leave, and journals that it may have.
	Permit func(ctx context.Context) error
	Emit   func() error // sends the marker: from then on this node does not decide alone
}

// SendFinal sends what is left, and the final marker. The journal is written and the frozen copy is held
// while the bytes leave. The marker leaves only when nobody else can run the copy here: with the marker, the
// target may have the only one.
func (c *Copy) SendFinal(ctx context.Context, what Sending) error {
	c.WithholdFinal()
	held := guard.Go(func() error { return c.AwaitHeld(ctx) })
	permission := guard.Go(func() error { return what.Permit(ctx) }) // the journal takes as long
	if err := errors.Join(what.Content(ctx), <-held, <-permission); err != nil {
		return err
	}
	if err := c.ReleaseFinal(ctx); err != nil {
		return err
	}
	return what.Emit()
}

// WithholdFinal says that the final marker has not left.
func (c *Copy) WithholdFinal() { c.permit.withhold() }

// ReleaseFinal lets the final marker leave. It fails if the copy has run, or if the marker was denied.
func (c *Copy) ReleaseFinal(ctx context.Context) error {
	if c.ranUnheld(ctx) || !c.permit.release() {
		return c.errExposed()
	}
	return nil
}

// FinalReleased reports whether the final marker has been given to the stream, in which it may still wait.
func (c *Copy) FinalReleased() bool { return c.permit.given() }

// DenyFinal keeps the final marker here for good. Not ok: it may have left.
func (c *Copy) DenyFinal() (ok bool) { return c.permit.deny() }
