package switchover

import "context"

// In mode restart, the source stops the container, and the target starts one on probation.

// Stopped says that no process of the container is left here: the target may redirect to itself what opens no
// connection.
func (p *Packets) Stopped() { p.setRedirectable(p.hold) }

// Reviving says that the container is to run here again: the target may not redirect anything any more.
func (p *Packets) Reviving() { p.setRedirectable(nil) }

// StoppedNow reports whether no process of the container is left here.
func (p *Packets) StoppedNow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// setRedirectable sets the hold that the target may redirect to itself; nil: none (any more).
func (p *Packets) setRedirectable(hold Hold) {
	p.redirecting.Lock() // not while it is being redirected
	defer p.redirecting.Unlock()
	p.redirectable = hold
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = hold != nil
}

// Redirect sends packets that open no connection to the target, which is ready for them: answers to what
// its copy asks others on probation. The target at once resets the connections of the container that was
// stopped.
func (p *Packets) Redirect() error {
	p.redirecting.Lock()
	defer p.redirecting.Unlock()
	if p.redirectable == nil || !p.config.Final() {
		return nil // the target has no say in this, or no longer
	}
	return p.redirectable.StartRequests(p.there())
}

// Renew gives the container that is started again here a network of its own: nothing of the connections of
// the old one may be in its way. Those who want to connect go on waiting.
func (p *Packets) Renew(ctx context.Context) error {
	if p.hold == nil { // of an agent that was killed
		hold, err := p.config.Network.Prepare(p.address())
		if err != nil {
			return err
		}
		p.hold, p.held = hold, true
	}
	if err := p.hold.Start(); err != nil { // nothing leaves or comes while there is nobody
		return err
	}
	if err := p.config.Network.Detach(p.config.Container.ID); err != nil {
		return err
	}
	if _, err := p.config.Attachments.Attach(ctx, p.config.Container); err != nil {
		return err
	}
	return p.hold.StartRequests(p.here())
}
