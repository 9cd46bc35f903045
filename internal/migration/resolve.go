package migration

// Word is what the other node of a migration says when an operator decides where the container runs.
type Word string

// The words.
const (
	WordNone Word = ""           // it cannot be reached
	WordElse Word = "runs-there" // at the other node it runs, or is taken to run
	// nothing of it runs at the other node, and nothing will: that is durable there
	WordNever   Word = "not-there"
	WordGiven   Word = "given"   // the other node has given its copy away, or does so
	WordPending Word = "pending" // the other node answers, and does not know yet
	// the other node answers, and can never know: it is not the one that took the container, or has
	// lost its state
	WordUnknown Word = "unknown"
)

// Ruling is what becomes of an operator's decision, given the other node's word.
type Ruling string

// The rulings.
const (
	RuleCarryOut Ruling = "carry-out" // the decision is what decides
	// the other node's word says the same, and decides: nothing has to be overruled
	RuleHeed     Ruling = "heed"
	RuleAskAgain Ruling = "ask-again" // it answers, and will know more soon
	RuleRefuse   Ruling = "refuse"
)

// Question is an operator's decision with what is known when it is made.
type Question struct {
	Here   Side  // the node at which the operator decides
	State  State // of the migration there
	RunsAt Side  // the operator's decision
	Word   Word  // of the other node
	Late   bool  // it has been asked for as long as anybody wants to wait
	Force  bool  // the operator decides without the other node's word
}

// Rule decides whether an operator's decision may be carried out. The other node is fenced first: a
// copy is let run, or given up, only after the other node has said, durably, that this makes
// neither two of them nor none. Force stands in for a word that cannot be had, never against one: a
// node that says that the container runs there is believed.
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

// ruleTakeBack: the source's copy is to run again.
func (q Question) ruleTakeBack() Ruling {
	switch {
	case q.Word == WordNever && q.State == InDoubt:
		return RuleHeed
	case q.Word == WordNever:
		return RuleCarryOut
	case q.Word == WordElse && q.State == Committed:
		// It was told to end its copy, whose memory or files are not whole, and has not done so yet.
		return q.laterUnforced()
	}
	return RuleRefuse
}

// ruleGiveAway: the source's copy is to go.
func (q Question) ruleGiveAway() Ruling {
	switch {
	case q.Word == WordElse && q.State == InDoubt:
		return RuleHeed
	case q.Word == WordElse:
		return RuleCarryOut
	}
	return RuleRefuse
}

// ruleAtTarget: the copy here runs, and the source is not to be waited for.
func (q Question) ruleAtTarget() Ruling {
	if q.RunsAt == Target && q.Word == WordGiven {
		return RuleCarryOut
	}
	return RuleRefuse
}

// forced: nothing can be known.
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

// laterUnforced: more will be known soon, and there is no deciding against it.
func (q Question) laterUnforced() Ruling {
	if !q.Late {
		return RuleAskAgain
	}
	return RuleRefuse
}

// WordOf is what a message of the target, the answer to the source's question, says. After the
// commit, too, another state than the one that took the reservation cannot know whether the
// container runs.
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

// SourceWord is what the source of a migration says when the target's operator decides.
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

// Resolvable refuses an operator's decision that there is no need of, before anybody is asked about it.
func (m *Machine) Resolvable(decision Resolve) error {
	if m.rec.Spec.Side == Source {
		return m.sourceResolvable(decision)
	}
	return m.targetResolvable(decision)
}
