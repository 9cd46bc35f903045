package agent

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// guardedPackages are those whose goroutines run in the agent and do what a peer or a container
// makes them do.
var guardedPackages = []string{
	".", "../access", "../admission", "../cluster", "../attachment", "../criu/relief", "../envelopes",
	"../forecast", "../frozen", "../gc", "../inventory", "../journal", "../journal/rebuild", "../latestart",
	"../lease", "../location", "../node/rpc", "../placement/controller", "../reserve", "../residual",
	"../restart", "../sampling", "../staging", "../switchover", "../transfer/anew", "../transfer/dump",
	"../transfer/files", "../transfer/kept", "../transfer/layers", "../transfer/link",
	"../transfer/memory/arriving", "../transfer/memory/leaving", "../transfer/memory/precopy",
	"../transfer/memory/push", "../transfer/memory/rounds", "../transfer/progress", "../transfer/proof",
	"../transfer/state", "../transfer/volumes",
}

// lasting are the functions whose goroutines serve for as long as the agent does: it is better to start it
// again, as its unit does, than to go on without one of them.
var lasting = []string{"serveAll"}

// TestGoroutinesAreGuarded: a panic in a goroutine that nothing recovers ends the agent, and with it all
// migrations. So each goroutine starts by way of guarded or
// guard.Logged, or what it does is in guard.Do.
func TestGoroutinesAreGuarded(t *testing.T) {
	var names []string
	for _, dir := range guardedPackages {
		found, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(found), err)
		}
		names = append(names, found...)
	}
	checked := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range goroutines(file) {
			checked++
			if !isGuarded(call) {
				t.Errorf("%s: a panic in this goroutine would end the agent: use guarded, guard.Logged or "+
					"guard.Do", set.Position(call.Pos()))
			}
		}
	}
	if checked == 0 {
		t.Error("no goroutine was found")
	}
}

// goroutines are what go statements call, and what a WaitGroup's Go is given.
func goroutines(file *ast.File) (found []ast.Expr) {
	for _, declaration := range file.Decls {
		function, is := declaration.(*ast.FuncDecl)
		if is && strings.Contains(strings.Join(lasting, " "), function.Name.Name) {
			continue
		}
		ast.Inspect(declaration, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.GoStmt:
				found = append(found, node.Call.Fun)
			case *ast.CallExpr:
				if of, method := selected(node.Fun); method == "Go" && of != "guard" {
					found = append(found, node.Args...)
				}
			}
			return true
		})
	}
	return found
}

func isGuarded(what ast.Expr) (is bool) {
	ast.Inspect(what, func(node ast.Node) bool {
		if call, isCall := node.(*ast.CallExpr); isCall {
			of, method := selected(call.Fun)
			is = is || method == "guarded" || of == "guard" && (method == "Do" || method == "Logged")
		}
		return !is
	})
	return is
}

func selected(what ast.Expr) (of, name string) {
	selector, is := what.(*ast.SelectorExpr)
	if !is {
		return "", ""
	}
	if identifier, is := selector.X.(*ast.Ident); is {
		of = identifier.Name
	}
	return of, selector.Sel.Name
}

// TestPanicInASessionEndsIt: what a peer sends is handled in a goroutine of the session.
func TestPanicInASessionEndsIt(t *testing.T) {
	a, b := newPipe(t.Context())
	go func() { _ = b.Send(&api.Envelope{}) }()
	err := newSession(time.Minute).run(a, func(*api.Envelope) { panic("on purpose") })
	if err == nil || !strings.Contains(err.Error(), "on purpose") {
		t.Errorf("the session ended with %v, want the panic", err)
	}
}

// TestPanicBesideAMigrationBreaksItOff: the error of the migration names the panic, and the log has
// its stack.
func TestPanicBesideAMigrationBreaksItOff(t *testing.T) {
	a := newTestAgent(t)
	var log bytes.Buffer
	a.log = slog.New(slog.NewTextHandler(&log, nil))
	m := startedMove(t, a, waitingWork{a})
	m.guarded(func() { panic("on purpose") })()
	if record := m.record(); !strings.Contains(record.Error, "on purpose") {
		t.Errorf("the migration has the error %q, want the panic", record.Error)
	}
	if !strings.Contains(log.String(), "TestPanicBesideAMigrationBreaksItOff") {
		t.Errorf("the log has no stack of the panic: %s", log.String())
	}
}

// waitingWork does no step before its agent ends.
type waitingWork struct{ agent *Agent }

func (w waitingWork) do(context.Context, migration.StepName) (time.Time, error) {
	<-w.agent.ctx.Done()
	return time.Time{}, w.agent.ctx.Err()
}

func (w waitingWork) undo(ctx context.Context, step migration.StepName) error {
	_, err := w.do(ctx, step)
	return err
}

func (waitingWork) send(migration.Message) {}

func (w waitingWork) ask(context.Context, bool) (migration.Message, error) {
	return migration.Message{}, w.agent.ctx.Err()
}

func (w waitingWork) check(context.Context) (engine.Outcome, time.Time, error) {
	return "", time.Time{}, w.agent.ctx.Err()
}

func (waitingWork) ended(migration.Finish) {}

func (w waitingWork) unsent() bool { return false }
func (w waitingWork) fresh() work  { return w }

// clumsyWork panics when it is to send its first message.
type clumsyWork struct {
	waitingWork

	sent atomic.Int32
}

func (*clumsyWork) do(context.Context, migration.StepName) (time.Time, error) {
	return time.Time{}, nil
}
func (*clumsyWork) undo(context.Context, migration.StepName) error { return nil }

func (w *clumsyWork) send(migration.Message) {
	if w.sent.Add(1) == 1 {
		panic("on purpose")
	}
}

func (w *clumsyWork) unsent() bool { return false }
func (w *clumsyWork) fresh() work  { return w }

// TestPanicBetweenStepsGoesOnFromTheJournal: the machine has decided what was not done then, so it would wait
// for ever for the end of it.
func TestPanicBetweenStepsGoesOnFromTheJournal(t *testing.T) {
	a := newTestAgent(t)
	m := startedMove(t, a, &clumsyWork{waitingWork: waitingWork{a}})
	<-m.done
	if record := m.record(); record.State != migration.Done || !strings.Contains(record.Error, "agent") {
		t.Errorf("the migration is %+v, want that it was undone as after a crash of the agent", record)
	}
}

// startedMove makes a migration at its source that is in its first step.
func startedMove(t *testing.T, a *Agent, does work) *move {
	t.Helper()
	machine, err := migration.New(migration.Spec{
		ID: testMigration, Side: migration.Source, Container: strings.Repeat("c", 64), Name: "web",
		Source: "b", Target: "a", Mode: migration.Cold, Started: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	m := newMove(a, a.moves.journal(testMigration, engine.Definition{}), machine)
	m.take(does)
	if err := a.moves.add(m); err != nil {
		t.Fatal(err)
	}
	m.tell(migration.Start{})
	return m
}
