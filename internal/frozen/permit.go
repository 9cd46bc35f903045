package frozen

import (
	"context"
	"sync"
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
