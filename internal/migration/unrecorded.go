package migration

import (
	"fmt"
	"slices"
	"time"
)

// This file decides what a node may say about a migration if its state may have been lost, put back, or
// copied to another machine. A target that wrongly says never-ran causes two copies; one that wrongly says
// running causes none.

// Presence is the target's engine's view of a container.
type Presence string

// The presences.
const (
	Absent    Presence = "absent"
	Unlooked  Presence = "not known" // the engine does not answer
	Standing  Presence = "there"     // and does not run
	RunsThere Presence = "running"
)

// Evidence is what a target has beside its journal of a migration when the source asks for the outcome.
type Evidence struct {
	// Reserved is the incarnation that took the reservation, as the source has noted it; empty: the source
	// has noted none.
	Reserved string
	// Incarnation of this state.
	Incarnation string
	// Journaled: the journal has a record of the migration, which says never-ran.
	Journaled bool
	// Presence of a container of that identity in this node's engine. Since is when the engine got it,
	// if that is known.
	Presence Presence
	Since    time.Time
}

// MayDeny reports whether the target may answer never-ran, and if not why, in words for an operator. A
// journal that says never-ran is trusted by the state that wrote it, unless the engine runs the container.
// A migration without a journal never ran if this is the state that took the reservation and its engine has
// nothing of the container. A source that has noted no incarnation (its journal is older than incarnations)
// gets an answer from the engine alone.
func MayDeny(e Evidence) (why string, may bool) {
	seen := string(e.Presence)
	if e.Presence == RunsThere && !e.Since.IsZero() {
		seen += " since " + e.Since.UTC().Format(time.RFC3339)
	}
	switch {
	case e.Reserved != "" && e.Reserved != e.Incarnation:
		return fmt.Sprintf("its state is %s, not %s, which took the reservation: it was lost, restored "+
			"or copied; its engine says of a container of that ID: %s",
			e.Incarnation, e.Reserved, seen), false
	case e.Presence == RunsThere, e.Presence == Standing && !e.Journaled:
		return "its engine has a container of that id, which is " + seen +
			"; its journals do not record such an end of the migration", false
	case e.Presence == Unlooked && !e.Journaled:
		return "its journals do not know the migration, and its engine does not say whether the " +
			"container is there", false
	}
	return "", true
}

// DeniesRun reports whether the record of an unfinished target says that the container cannot run there:
// the step that resumes it was not begun. If the engine runs it nevertheless, the record is an older one
// that was put back, and must not be used for any answer or action.
func (r Record) DeniesRun() bool {
	if r.Spec.Side != Target || r.State == Done || r.Decision == Ran || r.Overruled {
		return false
	}
	return !r.resumes()
}

// resumes reports whether the step that resumes the container may have begun.
func (r Record) resumes() bool {
	return slices.ContainsFunc(Steps(r.Spec.Mode), func(s Step) bool {
		return s.Commit && slices.Contains(r.Begun, s.Name)
	})
}

// NeverRuns reports whether the record of a target says that the container does not run there, and never
// will: the source has been told so, or is told when it asks, and lets the container go on. The rest of the
// arrival may not be removed yet.
func (r Record) NeverRuns() bool {
	if r.Spec.Side != Target || r.Decision != NeverRan {
		return false
	}
	fencing := r.Overruled && r.resumes()
	return !fencing
}

// doubted reports whether the source must not believe a message that ends its doubt, because its sender is
// not the state that took the reservation. As long as the final marker has not left, the source decides
// alone.
func (m sourceSide) doubted(msg Message) bool {
	if m.rec.State != InDoubt && (m.rec.State != Forward || !m.rec.Final) {
		return false
	}
	switch msg.Kind {
	case KindUnknown:
		return true
	case KindNeverRan, KindRunning:
		return m.rec.Incarnation != "" && msg.Incarnation != m.rec.Incarnation
	default:
		return false
	}
}

// alarm notes that only an operator can decide, what each side knows, and how to decide. The source stays
// as it is, and goes on asking.
func (m sourceSide) alarm(msg Message) {
	spec := m.rec.Spec
	said := bounded(msg.Error, maxText/2)
	if msg.Kind != KindUnknown {
		said = fmt.Sprintf("it says %s, but its state is %q, not %s, which took the reservation",
			msg.Kind, bounded(msg.Incarnation, maxName), m.rec.Incarnation)
	}
	m.rec.Alarm = fmt.Sprintf("the nodes cannot find out where %[1]s runs: %[2]s has all of it and does "+
		"not run it; about %[3]s: %[4]s. "+
		"Look there, for example with \"godwit ps\" and its engine's own list. If it runs on %[3]s: "+
		"godwit migration resolve %[5]s --runs-at "+
		"target --force. If it does not, and never will: godwit migration resolve %[5]s --runs-at source "+
		"--force. Both on %[2]s",
		spec.Name, spec.Source, spec.Target, said, spec.ID)
}
