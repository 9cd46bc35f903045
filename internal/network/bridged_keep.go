package network

import (
	"errors"
)

// KeepPassing keeps the rules that the administrator has allowed (AllowRules). While there is something to
// forward, it also repeats Passes.Make, because other programs recreate their chains, as Docker does when it
// starts. And it retries work that failed when a container had moved.
func (n *Network) KeepPassing() error {
	n.mu.Lock()
	err := n.finaliseBridged()
	n.sendElsewhere()
	n.mu.Unlock()
	err = errors.Join(err, n.passages.KeepAllowed())
	if !n.passes() {
		return err
	}
	err = errors.Join(err, n.passages.Make())
	if !n.passes() { // nothing is left to forward
		err = errors.Join(err, n.passages.Remove())
	}
	return err
}

// passes reports whether there is something to forward for containers on bridges.
func (n *Network) passes() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.bridged)+len(n.routed) > 0
}
