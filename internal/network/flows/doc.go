// Package flows saves conntrack entries of containers on bridges that leave this node, so that connections
// that came in here, or went out masqueraded, continue after their engine has deleted these entries.
//
// It has no state of its own: the saved entries are elements of a table of the packet filter, which outlives
// the agent. The records of containers on bridges say whose entries are needed, so their lock serialises the
// calls.
package flows
