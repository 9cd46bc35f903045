package migration

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds for values from other nodes.
const (
	maxName     = 63
	maxText     = 4096
	maxProblems = 100
	maxSpans    = 256
	maxNotes    = 32

	idDigits        = 16 // of a migration
	containerDigits = 64
)

// MinTimeout and MaxTimeout bound how long a migration may be allowed to take.
const (
	MinTimeout = time.Second
	MaxTimeout = 30 * 24 * time.Hour
)

// CheckID refuses a text that is not the id of a migration: 16 lower-case hexadecimal digits. The id
// becomes a file name.
func CheckID(id string) error {
	if !isHex(id, idDigits) {
		return fmt.Errorf("migration id %q: must be %d lower-case hexadecimal digits", bounded(id, maxName),
			idDigits)
	}
	return nil
}

// CheckContainerID refuses a text that is not the id of a container: 64 lower-case hexadecimal digits. The
// id becomes a file name.
func CheckContainerID(id string) error {
	if !isHex(id, containerDigits) {
		return fmt.Errorf("container id %q: must be %d lower-case hexadecimal digits", bounded(id, 2*maxName),
			containerDigits)
	}
	return nil
}

// CheckName refuses a text that cannot be the name of a container: [a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}.
func CheckName(name string) error { return checkName("container name", name) }

// CheckNode refuses a text that cannot be the name of a node; the rule is that of container names.
func CheckNode(name string) error { return checkName("node name", name) }

// CheckRoute refuses a migration from a node to itself.
func CheckRoute(source, target string) error {
	if source == target {
		return fmt.Errorf("the container is already on %s: choose another node", bounded(target, maxName))
	}
	return nil
}

// CheckTimeout refuses an invalid time limit. Zero is none.
func CheckTimeout(d time.Duration) error {
	if d != 0 && (d < MinTimeout || d > MaxTimeout) {
		return fmt.Errorf("timeout %s: must be between %s and %s, or 0 for none", d, MinTimeout, MaxTimeout)
	}
	return nil
}

// check refuses a spec that no migration can have.
func (s Spec) check() error {
	var errs []error
	if s.Side != Source && s.Side != Target {
		errs = append(errs, fmt.Errorf("side %q: must be source or target", bounded(string(s.Side), maxName)))
	}
	mode, err := ParseMode(string(s.Mode))
	if err == nil && !mode.Available() {
		err = fmt.Errorf("mode %s is for a request: a migration has the mode that was chosen", mode)
	}
	errs = append(errs, err, CheckID(s.ID), CheckContainerID(s.Container), CheckName(s.Name),
		CheckNode(s.Source), CheckNode(s.Target), CheckRoute(s.Source, s.Target))
	return errors.Join(errs...)
}

func checkName(what, name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%s %q: must have 1 to %d characters", what, bounded(name, maxName), maxName)
	}
	for i, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("_.-", rune(c))) {
			return fmt.Errorf("%s %q: must be letters, digits, and after the first also _ . -", what, name)
		}
	}
	return nil
}

func isHex(s string, digits int) bool {
	return len(s) == digits && strings.Trim(s, "0123456789abcdef") == ""
}

// bounded truncates a text that may come from another node, and makes it printable as UTF-8.
func bounded(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit] + "…"
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "?")
	}
	return text
}

func boundedProblems(problems []Problem) []Problem {
	var out []Problem
	for _, p := range problems[:min(len(problems), maxProblems)] {
		out = append(out, Problem{
			What: bounded(p.What, maxText), Why: bounded(p.Why, maxText), Remedy: bounded(p.Remedy, maxText),
		})
	}
	return out
}

func boundedSpans(spans []Span) []Span {
	var out []Span
	for _, s := range spans[:min(len(spans), maxSpans)] {
		s.Phase = bounded(s.Phase, maxName)
		out = append(out, s)
	}
	return out
}
