package migration

// Word is the other node's statement when an operator decides where the container runs.
type Word string

// The words.
const (
	WordNone Word = ""           // it cannot be reached
	WordElse Word = "runs-there" // the container runs at the other node, or is taken to run
	// nothing of the container runs at the other node, and nothing will: that is durable there
	WordNever   Word = "not-there"
	WordGiven   Word = "given"   // the other node has given its copy away, or does so
	WordPending Word = "pending" // the other node answers, and does not know yet
	// the other node answers, and can never know: it is not the node that took the container, or has lost
	// its state
	WordUnknown Word = "unknown"
)

// Ruling is what happens with an operator's decision, given the other node's word.
type Ruling string

// The rulings.
const (
	RuleCarryOut Ruling = "carry-out" // the operator's decision decides
	// the other node's word agrees, and decides: nothing has to be overruled
	RuleHeed     Ruling = "heed"
	RuleAskAgain Ruling = "ask-again" // the other node answers, and will know more soon
	RuleRefuse   Ruling = "refuse"
)

// Question is an operator's decision, with the facts known when it is made.
type Question struct {
	Here   Side  // the node at which the operator decides
	State  State // of the migration there
	RunsAt Side  // the operator's decision
	Word   Word  // of the other node
	Late   bool  // the node has asked for the longest acceptable time
	Force  bool  // the operator decides without the other node's word
}

// Rule decides whether an operator's decision may be carried out. The other node is fenced first: a copy
// may run, or be given up, only after the other node has stated, durably, that this leads neither to two
// copies nor to none. Force replaces a statement that cannot be obtained, but never overrides one: a node
// that states that the container runs there is believed.
func (q Question) Rule() Ruling {
	switch q.Word {
	case WordNone, WordUnknown:
		return q.forced()
	case WordPending:
		return q.later()
	}
	switch {
	case q.Here == Target:
		return q.ruleAtTarget()
	case q.RunsAt == Source:
		return q.ruleTakeBack()
	default:
		return q.ruleGiveAway()
	}
}

// ruleTakeBack: the source's copy should run again.
func (q Question) ruleTakeBack() Ruling {
	switch {
	case q.Word == WordNever && q.State == InDoubt:
		return RuleHeed
	case q.Word == WordNever:
		return RuleCarryOut
	case q.Word == WordElse && q.State == Committed:
		// The target was told to end its copy, whose memory or files are incomplete, and has not done so
		// yet.
		return q.laterUnforced()
	}
	return RuleRefuse
}

// ruleGiveAway: the source's copy should be removed.
func (q Question) ruleGiveAway() Ruling {
	switch {
	case q.Word == WordElse && q.State == InDoubt:
		return RuleHeed
	case q.Word == WordElse:
		return RuleCarryOut
	}
	return RuleRefuse
}

// ruleAtTarget: the copy here runs, and this node should not wait for the source.
func (q Question) ruleAtTarget() Ruling {
	if q.RunsAt == Target && q.Word == WordGiven {
		return RuleCarryOut
	}
	return RuleRefuse
}

// forced: the other node's state cannot be known.
func (q Question) forced() Ruling {
	if q.Force {
		return RuleCarryOut
	}
	return RuleRefuse
}

// later: more may be known soon.
func (q Question) later() Ruling {
	if !q.Late {
		return RuleAskAgain
	}
	return q.forced()
}

// laterUnforced: more will be known soon, and force does not help.
func (q Question) laterUnforced() Ruling {
	if !q.Late {
		return RuleAskAgain
	}
	return RuleRefuse
}

// WordOf translates the target's answer to the source's question. Even after the commit, only the
// incarnation that took the reservation can know whether the container runs.
func (m *Machine) WordOf(message Message) Word {
	foreign := m.rec.Incarnation != "" && message.Incarnation != m.rec.Incarnation
	switch {
	case message.Kind == KindUnknown, foreign &&
		(message.Kind == KindRunning || message.Kind == KindNeverRan):
		return WordUnknown
	case message.Kind == KindRunning:
		return WordElse
	case message.Kind == KindNeverRan:
		return WordNever
	default:
		return WordPending
	}
}

// SourceWord returns the source's statement for a decision of the target's operator.
func (r Record) SourceWord() Word {
	switch {
	case r.Overruled || r.Decision == NeverRan || r.State == Undoing || r.State == Done && r.Result != Moved:
		return WordElse
	case r.State == Committed || r.State == Done:
		return WordGiven
	default:
		return WordPending
	}
}

// Resolvable refuses an unnecessary decision of an operator before the other node is asked about it.
func (m *Machine) Resolvable(decision Resolve) error {
	return m.rules().resolvable(decision)
}
