package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/migration"
)

const (
	// resolvePatience bounds how long an operator waits for the other node to know what it is
	// asked: to end a restore, and to remove what it has made, takes seconds.
	resolvePatience = 30 * time.Second
	resolveEvery    = 200 * time.Millisecond
)

// decision is an operator's statement of where a container runs.
type decision struct {
	runsAt  migration.Side
	missing string // what becomes of pages that will never come; see arriving.Memory
	force   bool   // also without the other node's word
}

// said is the other node's answer to an operator's decision.
type said struct {
	word    migration.Word
	message *migration.Message // of the target, that says so
	why     string             // there is no word, or not yet
}

// decidable is work whose outcome the other node can be asked for on behalf of an operator.
type decidable interface {
	// hear asks the other node, and has it do what the decision needs it to.
	hear(ctx context.Context, state migration.State, runsAt migration.Side) said
}

// resolve carries out an operator's decision of where the container of a migration runs, once the
// other node has been fenced. The notice is for the operator.
func (a *Agent) resolve(ctx context.Context, m *move, d decision) (notice string, err error) {
	if giver, ok := m.work().(*source); ok && d.runsAt == migration.Source {
		if err := giver.mayTakeBack(ctx, d.force); err != nil {
			return "", err
		}
	}
	getter, ok := m.work().(*target)
	missing := false
	if ok && d.runsAt == migration.Target {
		if missing, err = getter.memory.Missing(ctx, d.missing); err != nil {
			return "", err
		}
	}
	if missing && m.ended() {
		return "", getter.memory.GiveUp(ctx, d.missing)
	}
	event := migration.Resolve{RunsAt: d.runsAt}
	if err := m.resolvable(event); err != nil {
		return "", err
	}
	over, notice, err := a.fence(ctx, m, d)
	if err == nil && missing {
		err = getter.memory.GiveUp(ctx, d.missing)
	}
	if err != nil || over {
		return notice, err
	}
	_, err = m.step(event)
	return notice, err
}

// resolvable refuses a decision that is not needed.
func (m *move) resolvable(event migration.Resolve) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.halted {
		return errHalted
	}
	return m.machine.Resolvable(event)
}

// fence asks the other node until its answer permits the decision, or until the machine has learned
// the outcome by itself.
func (a *Agent) fence(ctx context.Context, m *move, d decision) (over bool, notice string, err error) {
	asked, ok := m.work().(decidable)
	if !ok {
		return false, "", fmt.Errorf("%w: migration %s has ended", errRefused, m.tracker.Spec.ID)
	}
	began, was := time.Now(), m.record().State
	ticker := time.NewTicker(resolveEvery)
	defer ticker.Stop()
	for {
		if now := m.record(); was != migration.Committed && now.State != was {
			return true, "", decided(now, d.runsAt)
		}
		heard := asked.hear(ctx, was, d.runsAt)
		question := migration.Question{
			Here: m.tracker.Spec.Side, State: was, RunsAt: d.runsAt, Word: heard.word,
			Late: time.Since(began) > resolvePatience, Force: d.force,
		}
		switch question.Rule() {
		case migration.RuleCarryOut:
			if heard.word == migration.WordNone || heard.word == migration.WordPending ||
				heard.word == migration.WordUnknown {
				notice = a.warning(m, question, heard)
			}
			return false, notice, nil
		case migration.RuleHeed:
			m.wish(d.runsAt)
			m.tell(migration.Received{Message: *heard.message})
			return true, "", nil
		case migration.RuleRefuse:
			return false, "", a.refusal(m, question, heard)
		case migration.RuleAskAgain:
			m.wish(d.runsAt)
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
func (m *move) wish(runsAt migration.Side) {
	if runsAt == migration.Source && m.record().State == migration.InDoubt {
		m.tell(migration.Cancel{Reason: "an operator decided that it runs at the source"})
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
	return fmt.Errorf("%w: meanwhile the nodes have found out that %s runs at the %s", errRefused,
		now.Spec.Name, at)
}

// refusal explains why a decision is refused, and what the operator can do.
func (a *Agent) refusal(m *move, q migration.Question, heard said) error {
	spec, other := m.tracker.Spec, otherNode(m.tracker.Spec)
	switch heard.word {
	case migration.WordNone, migration.WordUnknown, migration.WordPending:
		why := fmt.Sprintf("%s cannot be reached (%s)", other, heard.why)
		if heard.word != migration.WordNone {
			why = fmt.Sprintf("%s does not know (%s)", other, heard.why)
		}
		return fmt.Errorf("%w: cannot find out whether %s runs at %s: %s; %s. Wait until that node can "+
			"say, or decide without its answer with --force: %s",
			errRefused, spec.Name, other, why, a.lastContact(other), mayHappen(spec, q))
	case migration.WordElse:
		if q.Here == migration.Source {
			return fmt.Errorf("%w: %s runs at %s, as that node says: to bring the container back, migrate "+
				"it from there", errRefused, spec.Name, other)
		}
		return fmt.Errorf("%w: %s has taken %s back, so the copy here must end", errRefused, other,
			spec.Name)
	}
	return fmt.Errorf("%w: %s says that nothing of %s runs there: \"godwit migration resolve %s --runs-at "+
		"source\" lets it go on here", errRefused, other, spec.Name, spec.ID)
}

// warning tells an operator who decided without the other node's answer when that node was last
// heard, and what may happen.
func (a *Agent) warning(m *move, q migration.Question, heard said) string {
	spec, other := m.tracker.Spec, otherNode(m.tracker.Spec)
	return fmt.Sprintf("decided without an answer from %s (%s); %s. %s", other, heard.why,
		a.lastContact(other), mayHappen(spec, q))
}

// lastContact says when a node was last heard.
func (a *Agent) lastContact(node string) string {
	at := a.peers.Contact(node)
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

// hear asks the target what became of the migration. To take back what was handed over, the target
// is first told to end its copy.
func (s *source) hear(ctx context.Context, state migration.State, runsAt migration.Side) said {
	if runsAt == migration.Source && state == migration.Committed {
		if heard, told := s.control.tellNow(ctx, migration.Message{Kind: migration.KindOverruled}); !told {
			return heard
		}
	}
	message, err := s.ask(ctx, runsAt == migration.Source && state == migration.InDoubt)
	if err != nil {
		return noWord(err)
	}
	word, why := s.move.wordOf(message), "it is still busy with steps of this migration"
	if word == migration.WordUnknown {
		why = cmp.Or(message.Error, "its state directory is not the one that took the container")
	}
	return said{word: word, message: &message, why: why}
}

// wordOf translates an answer of the target, which counts only if its incarnation is the expected one.
func (m *move) wordOf(message migration.Message) migration.Word {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.WordOf(message)
}

// hear tells the source that the container runs here, and asks whether it has given its copy away.
func (t *target) hear(ctx context.Context, _ migration.State, _ migration.Side) said {
	heard, _ := t.control.tellNow(ctx, migration.Message{
		Kind: migration.KindRunning, At: t.move.record().Resumed, Incarnation: t.agent.incarnation(),
	})
	return heard
}

// tellNow sends the peer a message in a separate call and waits for the answer.
func (c *control) tellNow(ctx context.Context, message migration.Message) (heard said, told bool) {
	encoded, err := envelopes.Encode(message)
	if err != nil {
		return noWord(err), false
	}
	var reply *api.TellReply
	err = c.ask(ctx, func(ctx context.Context, peer api.PeerClient) (err error) {
		reply, err = peer.Tell(ctx, &api.TellRequest{Migration: c.move.tracker.Spec.ID, Message: encoded})
		return err
	})
	if err != nil {
		return noWord(err), false
	}
	if reply.Answer != nil { // the source has forgotten what had come to its end
		return said{word: migration.WordGiven}, true
	}
	switch word := migration.Word(reply.Word); word {
	case migration.WordElse, migration.WordGiven, migration.WordUnknown:
		return said{word: word, why: "it says " + string(word)}, true
	default:
		return said{word: migration.WordPending, why: "it is still busy with steps of this migration"}, true
	}
}

// noWord distinguishes a node that cannot be reached from a node that answers with an error.
func noWord(err error) said {
	code := status.Code(err)
	if _, answered := status.FromError(err); !answered || code == codes.Unavailable ||
		code == codes.DeadlineExceeded || code == codes.Canceled ||
		errors.Is(err, context.Canceled) {
		return said{word: migration.WordNone, why: plain(err)}
	}
	return said{word: migration.WordPending, why: plain(err)}
}
