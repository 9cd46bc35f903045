package decide

import (
	"fmt"
	"strings"
	"time"
)

// Cause of an intent.
type Cause string

// The causes.
const (
	User      Cause = "user"
	Drain     Cause = "drain"
	Allowed   Cause = "allowed"
	BringBack Cause = "bring-back"
	Affinity  Cause = "affinity"
	Spread    Cause = "spread"
)

// State is what an operator wants of a node.
type State int

// The states.
const (
	Active State = iota
	Cordoned
	Draining
)

// World is all that a decision depends on, beside the time. Nodes and containers refer to each other by
// index.
type World struct {
	Nodes      []Node // in order of name
	Containers []Container
	Requests   []Request
	// Enforce carries out what labels say. Otherwise these intents are recommendations.
	Enforce bool
}

// Node is a machine.
type Node struct {
	Name      string
	Labels    map[string]string
	State     State
	Connected bool
	// FreeBytes is the memory that new containers may take, without that of the containers on their way.
	FreeBytes int64
	// ArrivingBytes are on their way to the node.
	ArrivingBytes int64
	// BitsPerSecond is the bandwidth to other nodes, by index; DefaultBitsPerSecond where it is not known.
	BitsPerSecond map[int]float64
	// Drained says how the node is drained.
	Drained Drained
}

// Drained is an operator's wish to empty a node.
type Drained struct {
	By              string
	Since, Deadline time.Time // no deadline: zero
}

// Container is a container that runs.
type Container struct {
	ID, Name string
	Node     int
	// Busy containers have an intent, or a migration.
	Busy  bool
	Bytes int64 // of memory
	// Nodes says where the container may be.
	Nodes            Selector
	Affinity, Spread string // groups; empty: none
	// Home is the node to which the container returns from a drain; -1: none.
	Home int
	// NotBefore is when the container may be tried again after a failure.
	NotBefore time.Time
	// Refused are the nodes, by index, that refused the container and have not changed since. Failed are
	// those to which it did not move for another reason: they are tried after the others.
	Refused, Failed []int
	// Held is who cancelled a move of the container from its node, so that only a user moves it; empty:
	// nobody.
	Held string
}

// Request is a user's wish to move a container.
type Request struct {
	Container, Target int
	By                string
}

// Intent is a decision for one container.
type Intent struct {
	Container int
	Target    int // -1: there is no node for it, and Reason says why
	Cause     Cause
	Reason    string
	Priority  int
	// Recommended intents are shown, not carried out.
	Recommended bool
	Seconds     float64 // predicted
}

// Possible reports whether there is a target.
func (i Intent) Possible() bool { return i.Target >= 0 }

// Limits of selectors, which come from labels of containers.
const (
	maxSelectorBytes = 1024
	maxTerms         = 16
)

// Selector is a conjunction of labels that a node must have.
type Selector []Term

// Term is one label: its value is one of Values, or none of them.
type Term struct {
	Key    string
	Values []string
	Not    bool
}

// ParseSelector reads KEY=VALUE[|VALUE...] and KEY!=VALUE[|VALUE...], separated by commas.
func ParseSelector(text string) (Selector, error) {
	if len(text) > maxSelectorBytes {
		return nil, fmt.Errorf("selector has %d bytes; the limit is %d", len(text), maxSelectorBytes)
	}
	if text == "" {
		return nil, nil
	}
	parts := strings.Split(text, ",")
	if len(parts) > maxTerms {
		return nil, fmt.Errorf("selector has %d terms; the limit is %d", len(parts), maxTerms)
	}
	var all Selector
	for _, part := range parts {
		key, values, found := strings.Cut(strings.TrimSpace(part), "=")
		key, not := strings.CutSuffix(key, "!")
		if !found || key == "" || values == "" {
			return nil, fmt.Errorf("selector %.100q: want KEY=VALUE[|VALUE...] or KEY!=VALUE[|VALUE...], "+
				"separated by commas", text)
		}
		all = append(all, Term{Key: key, Values: strings.Split(values, "|"), Not: not})
	}
	return all, nil
}

// Matches reports whether labels meet all terms.
func (s Selector) Matches(labels map[string]string) bool {
	for _, term := range s {
		found := false
		for _, value := range term.Values {
			if has, ok := labels[term.Key]; ok && has == value {
				found = true
			}
		}
		if found == term.Not {
			return false
		}
	}
	return true
}

// String is the selector as a user writes it.
func (s Selector) String() string {
	var parts []string
	for _, term := range s {
		operator := "="
		if term.Not {
			operator = "!="
		}
		parts = append(parts, term.Key+operator+strings.Join(term.Values, "|"))
	}
	return strings.Join(parts, ",")
}
