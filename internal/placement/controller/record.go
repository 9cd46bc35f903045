package controller

import (
	"bytes"
	"encoding/json"
	"sync"

	"github.com/godwit/godwit/internal/placement"
)

// document is what is durable of a policy.
type document struct {
	Policy placement.Policy `json:"policy"`
	// the node to which the container has gone; it is to get the policy
	Left   string `json:"left,omitempty"`
	LeftBy string `json:"left_by,omitempty"` // the migration
}

// gone is where a container is that has left.
type gone struct {
	node      string // empty: it has not
	migration string // by which
}

// record is what others see of a policy while it is being carried out, and what is durable of it.
type record struct {
	store func(data []byte) error // makes data durable

	mu      sync.Mutex
	told    placement.Policy // as it was after the last step
	left    gone
	kept    placement.Copy // of what it held when it left; no node: nothing was kept
	decided placement.Decision
	saved   []byte
	ended   bool // only changed while the follower's work is held
}

func (r *record) snapshot() placement.Policy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told.Clone()
}

// outlook is how far it is, and what was decided last.
func (r *record) outlook() (placement.Policy, placement.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told.Clone(), r.decided
}

// publish lets others see how far it is.
func (r *record) publish(p placement.Policy, d placement.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told, r.decided = p.Clone(), d
}

// leave notes durably that the container has gone to a node, and what of it was kept here. It does
// not wait for what is done just now.
func (r *record) leave(to gone, kept placement.Copy) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left, r.kept = to, kept
	return r.write(r.told)
}

func (r *record) goneTo() gone {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

// stay notes that the container is here again.
func (r *record) stay() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left, r.kept = gone{}, placement.Copy{}
}

// leaving is the policy with what the container has left here.
func (r *record) leaving(p placement.Policy) placement.Policy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.With(r.kept)
}

// end ends the policy: nobody writes its file again, which remove removes.
func (r *record) end(remove func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return remove()
}

// save makes the policy durable as it is now.
func (r *record) save(p placement.Policy) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.write(p)
}

// write makes its file, unless it has ended, or nothing is new. The caller holds the lock.
func (r *record) write(p placement.Policy) error {
	data, err := json.Marshal(document{Policy: p.With(r.kept), Left: r.left.node,
		LeftBy: r.left.migration})
	if err != nil || r.ended || bytes.Equal(data, r.saved) {
		return err
	}
	if err := r.store(data); err != nil {
		return err
	}
	r.saved = data
	return nil
}
