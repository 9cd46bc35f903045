package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

const (
	// resolvePatience bounds how long an operator waits for the other node to know what it is
	// asked: to end a restore, and to remove what it has made, takes seconds.
	resolvePatience = 30 * time.Second
	resolveEvery    = 200 * time.Millisecond
)

// Operators carry out operators' decisions about migrations, when the other node has been asked.
type Operators struct {
	containers *Containers
	recovery   *Recovery
	contact    func(node string) time.Time
}

// NewOperators carries out decisions about the migrations of recovery. contact is when a node was last heard.
func NewOperators(recovery *Recovery, contact func(node string) time.Time) *Operators {
	return &Operators{containers: NewContainers(recovery.moves), recovery: recovery, contact: contact}
}

// Decision is an operator's statement of where a container runs.
type Decision struct {
	RunsAt  migration.Side
	Missing string // what becomes of pages that will never come; see Filled
	Force   bool   // also without the other node's word
}

// Said is the other node's answer to an operator's decision.
type Said struct {
	Word    migration.Word
	Message *migration.Message // of the target, that says so
	Why     string             // there is no word, or not yet
}

// Decidable is work whose outcome the other node can be asked for on behalf of an operator.
type Decidable interface {
	// Hear asks the other node, and has it do what the decision needs it to.
	Hear(ctx context.Context, state migration.State, runsAt migration.Side) Said
}

// TakenBack is work at a source that may not be able to take its container back.
type TakenBack interface {
	// MayTakeBack refuses to let the container go on here.
	MayTakeBack(ctx context.Context, force bool) error
}

// Filled is work at a target whose container may lack pages that never come.
type Filled interface {
	// MissingPages looks for such pages, of which an operator says what becomes.
	MissingPages(ctx context.Context, how string) (missing bool, err error)
	GiveUpPages(ctx context.Context, how string) error
}

// Resolve carries out an operator's decision of where the container of a migration runs, once the
// other node has been fenced. The notice is for the operator.
func (o *Operators) Resolve(ctx context.Context, m *Move, d Decision) (notice string, err error) {
	if giver, ok := m.Work().(TakenBack); ok && d.RunsAt == migration.Source {
		if err := giver.MayTakeBack(ctx, d.Force); err != nil {
			return "", err
		}
	}
	getter, ok := m.Work().(Filled)
	missing := false
	if ok && d.RunsAt == migration.Target {
		if missing, err = getter.MissingPages(ctx, d.Missing); err != nil {
			return "", err
		}
	}
	if missing && m.Ended() {
		return "", getter.GiveUpPages(ctx, d.Missing)
	}
	event := migration.Resolve{RunsAt: d.RunsAt}
	if err := m.resolvable(event); err != nil {
		return "", err
	}
	over, notice, err := o.fence(ctx, m, d)
	if err == nil && missing {
		err = getter.GiveUpPages(ctx, d.Missing)
	}
	if err != nil || over {
		return notice, err
	}
	_, err = m.Step(event)
	return notice, err
}

// resolvable refuses a decision that is not needed.
func (m *Move) resolvable(event migration.Resolve) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.halted {
		return errHalted
	}
	return m.machine.Resolvable(event)
}

// fence asks the other node until its answer permits the decision, or until the machine has learned
// the outcome by itself.
func (o *Operators) fence(ctx context.Context, m *Move, d Decision) (over bool, notice string, err error) {
	asked, ok := m.Work().(Decidable)
	if !ok {
		return false, "", fmt.Errorf("%w: migration %s has ended", api.ErrRefused, m.Tracker.Spec.ID)
	}
	began, was := time.Now(), m.Record().State
	ticker := time.NewTicker(resolveEvery)
	defer ticker.Stop()
	for {
		if now := m.Record(); was != migration.Committed && now.State != was {
			return true, "", decided(now, d.RunsAt)
		}
		heard := asked.Hear(ctx, was, d.RunsAt)
		question := migration.Question{
			Here: m.Tracker.Spec.Side, State: was, RunsAt: d.RunsAt, Word: heard.Word,
			Late: time.Since(began) > resolvePatience, Force: d.Force,
		}
		switch question.Rule() {
		case migration.RuleCarryOut:
			if heard.Word == migration.WordNone || heard.Word == migration.WordPending ||
				heard.Word == migration.WordUnknown {
				notice = o.warning(m, question, heard)
			}
			return false, notice, nil
		case migration.RuleHeed:
			m.wish(d.RunsAt)
			m.Happen(migration.Received{Message: *heard.Message})
			return true, "", nil
		case migration.RuleRefuse:
			return false, "", o.refusal(m, question, heard)
		case migration.RuleAskAgain:
			m.wish(d.RunsAt)
		}
		select {
		case <-ctx.Done():
			return false, "", ctx.Err()
		case <-ticker.C:
		}
	}
}

// wish has a machine in doubt keep asking the target to end it, until the answer comes. What is not
// in doubt has no use for that.
func (m *Move) wish(runsAt migration.Side) {
	if runsAt == migration.Source && m.Record().State == migration.InDoubt {
		m.Happen(migration.Cancel{Reason: "an operator decided that it runs at the source"})
	}
}

// decided checks that a migration whose outcome has meanwhile become known ended as the operator said.
func decided(now migration.Record, runsAt migration.Side) error {
	at := migration.Source
	if now.Decision == migration.Ran {
		at = migration.Target
	}
	if at == runsAt {
		return nil
	}
	return fmt.Errorf("%w: meanwhile the nodes have found out that %s runs at the %s", api.ErrRefused,
		now.Spec.Name, at)
}

// refusal explains why a decision is refused, and what the operator can do.
func (o *Operators) refusal(m *Move, q migration.Question, heard Said) error {
	spec, other := m.Tracker.Spec, otherNode(m.Tracker.Spec)
	switch heard.Word {
	case migration.WordNone, migration.WordUnknown, migration.WordPending:
		why := fmt.Sprintf("%s cannot be reached (%s)", other, heard.Why)
		if heard.Word != migration.WordNone {
			why = fmt.Sprintf("%s does not know (%s)", other, heard.Why)
		}
		return fmt.Errorf("%w: cannot find out whether %s runs at %s: %s; %s. Wait until that node can "+
			"say, or decide without its answer with --force: %s",
			api.ErrRefused, spec.Name, other, why, o.lastContact(other), mayHappen(spec, q))
	case migration.WordElse:
		if q.Here == migration.Source {
			return fmt.Errorf("%w: %s runs at %s, as that node says: to bring the container back, migrate "+
				"it from there", api.ErrRefused, spec.Name, other)
		}
		return fmt.Errorf("%w: %s has taken %s back, so the copy here must end", api.ErrRefused, other,
			spec.Name)
	}
	return fmt.Errorf("%w: %s says that nothing of %s runs there: \"godwit migration resolve %s --runs-at "+
		"source\" lets it go on here", api.ErrRefused, other, spec.Name, spec.ID)
}

// warning tells an operator who decided without the other node's answer when that node was last
// heard, and what may happen.
func (o *Operators) warning(m *Move, q migration.Question, heard Said) string {
	spec, other := m.Tracker.Spec, otherNode(m.Tracker.Spec)
	return fmt.Sprintf("decided without an answer from %s (%s); %s. %s", other, heard.Why,
		o.lastContact(other), mayHappen(spec, q))
}

// lastContact says when a node was last heard.
func (o *Operators) lastContact(node string) string {
	at := o.contact(node)
	if at.IsZero() {
		return fmt.Sprintf("last contact with %s: none since this agent was started", node)
	}
	return fmt.Sprintf("last contact with %s: %s ago, at %s", node, time.Since(at).Round(time.Second),
		at.UTC().Format(time.RFC3339))
}

// mayHappen describes what a decision without the other node's answer may lead to.
func mayHappen(spec migration.Spec, q migration.Question) string {
	other := otherNode(spec)
	switch {
	case q.Here == migration.Target:
		return fmt.Sprintf("If %s has taken %s back, two copies run", other, spec.Name)
	case q.RunsAt == migration.Source:
		return fmt.Sprintf("If %s runs at %s, or starts there later, two copies run until the nodes hear "+
			"of each other; then the copy at %s is ended", spec.Name, other, other)
	}
	return fmt.Sprintf("If %s does not run at %s, no copy is left: the copy here is removed", spec.Name,
		other)
}

func otherNode(spec migration.Spec) string {
	if spec.Side == migration.Source {
		return spec.Target
	}
	return spec.Source
}

// WordOf translates an answer of the target, which counts only if its incarnation is the expected one.
func (m *Move) WordOf(message migration.Message) migration.Word {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.WordOf(message)
}

// Line takes messages to the other node of a migration. See control.Line.
type Line interface {
	Tell(ctx context.Context, message migration.Message) (*api.TellReply, error)
}

// TellNow sends the other node a message in a separate call and waits for the answer.
func TellNow(ctx context.Context, line Line, message migration.Message) (heard Said, told bool) {
	reply, err := line.Tell(ctx, message)
	if err != nil {
		return NoWord(err), false
	}
	if reply.Answer != nil { // the source has forgotten what had come to its end
		return Said{Word: migration.WordGiven}, true
	}
	switch word := migration.Word(reply.Word); word {
	case migration.WordElse, migration.WordGiven, migration.WordUnknown:
		return Said{Word: word, Why: "it says " + string(word)}, true
	default:
		return Said{Word: migration.WordPending, Why: BusyWithSteps}, true
	}
}

// BusyWithSteps is why a node that answers has no word yet.
const BusyWithSteps = "it is still busy with steps of this migration"

// NoWord distinguishes a node that cannot be reached from a node that answers with an error.
func NoWord(err error) Said {
	code := status.Code(err)
	if _, answered := status.FromError(err); !answered || code == codes.Unavailable ||
		code == codes.DeadlineExceeded || code == codes.Canceled ||
		errors.Is(err, context.Canceled) {
		return Said{Word: migration.WordNone, Why: api.Plain(err)}
	}
	return Said{Word: migration.WordPending, Why: api.Plain(err)}
}
