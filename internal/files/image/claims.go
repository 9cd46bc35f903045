package image

import (
	"context"
	"sync"
)

// claims keep two goroutines of this process from making the same layer. The zero value has none.
type claims struct {
	mu     sync.Mutex
	making map[string]*making // by DiffID
}

// making is a layer that somebody makes, or wants to make. The token channel has room for one token, which
// the maker of the layer puts into it.
type making struct {
	token chan struct{}
	users int // the mutex guards it
}

// claim reserves a layer for the caller to make, until it is released, unless the layer is here or somebody
// else makes it.
func (c *claims) claim(diffID string, here func(string) bool) (release func(), ok bool) {
	one := c.use(diffID)
	select {
	case one.token <- struct{}{}:
	default:
		c.leave(diffID)
		return nil, false
	}
	release = func() {
		<-one.token
		c.leave(diffID)
	}
	if here(diffID) {
		release()
		return nil, false
	}
	return release, true
}

// use keeps the record of a layer until it is left: others may want to make the same layer.
func (c *claims) use(diffID string) *making {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, ok := c.making[diffID]
	if !ok {
		if c.making == nil {
			c.making = map[string]*making{}
		}
		one = &making{token: make(chan struct{}, 1)}
		c.making[diffID] = one
	}
	one.users++
	return one
}

// leave forgets an unused layer, because callers may name any number of layers.
func (c *claims) leave(diffID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.making[diffID]
	if one.users--; one.users == 0 {
		delete(c.making, diffID)
	}
}

// alone waits until nobody else in this process makes the layer.
func (c *claims) alone(ctx context.Context, diffID string) (done func(), err error) {
	one := c.use(diffID)
	select {
	case one.token <- struct{}{}:
		return func() {
			<-one.token
			c.leave(diffID)
		}, nil
	case <-ctx.Done():
		c.leave(diffID)
		return nil, context.Cause(ctx)
	}
}
