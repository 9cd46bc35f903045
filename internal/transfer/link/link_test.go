package link

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// TestSections: what is sent over the first connection comes in order, and the end says that all has come.
func TestSections(t *testing.T) {
	to := newNode(t)
	l, _ := linkTo(t, to, migration.Cold, nil)
	if l.Data() != nil || l.Codec() != stream.Choose(0, 1).Codec {
		t.Error("a connection that was not opened")
	}
	data, err := l.Open(t.Context(), "migration")
	if err != nil {
		t.Fatal(err)
	}
	if l.Data() != data || l.Codec() != data.Codec() {
		t.Error("another connection is the first one")
	}
	if err := l.Section("one", "", []byte("x")); err != nil {
		t.Fatal(err)
	}
	section, err := l.Begin("two", "name")
	if err == nil {
		_, err = section.Write([]byte("y"))
	}
	if err := errors.Join(err, section.Close(), data.Finish()); err != nil {
		t.Fatal(err)
	}
	if err := <-to.ended; err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(to.heard, []string{"one", "two"}) {
		t.Errorf("came: %q", to.heard)
	}
	if hello := to.hellos[0]; hello.Migration != testMigration || hello.Purpose != "migration" {
		t.Errorf("%+v", hello)
	}
}

// TestKeepFinal: what has not left does not leave, and what may have left is not said to be here.
func TestKeepFinal(t *testing.T) {
	to := newNode(t)
	kept, _ := linkTo(t, to, migration.Cold, nil)
	if _, err := kept.Open(t.Context(), "migration"); err != nil {
		t.Fatal(err)
	}
	if !kept.KeepFinal() || kept.Data().Finish() == nil {
		t.Error("a marker leaves over a connection that was closed")
	}
	left, _ := linkTo(t, to, migration.Cold, nil)
	data, err := left.Open(t.Context(), "migration")
	if err != nil {
		t.Fatal(err)
	}
	if err := data.Finish(); err != nil {
		t.Fatal(err)
	}
	if left.KeepFinal() {
		t.Error("a marker that has left is said to be here")
	}
}

// TestConnects: the connection that was made early is used before another one is made, and a target that
// cannot be reached is told.
func TestConnects(t *testing.T) {
	to := newNode(t)
	early := Connect(t.Context(), to.dial, slog.New(slog.DiscardHandler))
	early.CompleteFor(migration.Cold)
	l, _ := linkTo(t, to, migration.Cold, early)
	if _, err := l.Open(t.Context(), "migration"); err != nil || to.dials() != 1 {
		t.Fatalf("%d were made: %v", to.dials(), err)
	}
	more, err := l.OpenMore(t.Context(), "files", 1)
	if err != nil || to.dials() != 2 {
		t.Fatalf("%d were made: %v", to.dials(), err)
	}
	l.EndEarly()
	if err := more.Close(); err != nil {
		t.Error(err)
	}
	to.mu.Lock()
	to.fails = errors.New("no route")
	to.mu.Unlock()
	if _, err := l.OpenMore(t.Context(), "files", 1); !errors.Is(err, to.fails) {
		t.Errorf("a target that cannot be reached: %v", err)
	}
	none, _ := linkTo(t, to, migration.Cold, nil)
	if _, err := none.Open(t.Context(), "migration"); !errors.Is(err, to.fails) || none.Data() != nil {
		t.Errorf("the first connection: %v", err)
	}
}

// TestMeasure: what little shows of a link is not kept, and a failure names the target.
func TestMeasure(t *testing.T) {
	const little = 1 << 10
	to := newNode(t)
	l, known := linkTo(t, to, migration.Cold, nil)
	if _, err := l.Open(t.Context(), "migration"); err != nil {
		t.Fatal(err)
	}
	l.MeasureBeside(t.Context(), little)
	if err := l.Warm(t.Context(), little); err != nil || known.noted != 0 || l.warming != nil {
		t.Errorf("little: %v, noted %d times", err, known.noted)
	}
	if err := l.Warm(t.Context(), little); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := l.Data().Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Measure(t.Context(), little); err == nil || !strings.Contains(err.Error(), "the link to b") {
		t.Errorf("over a closed connection: %v", err)
	}
	if l.Warm(t.Context(), little) == nil || l.WarmFully(t.Context()) == nil {
		t.Error("a closed connection is warm")
	}
}

// TestMeasureWhole: the whole link is measured, and noted, before a mode that sends memory ahead.
func TestMeasureWhole(t *testing.T) {
	to := newNode(t)
	l, known := linkTo(t, to, migration.PreCopy, nil)
	if _, err := l.Open(t.Context(), "migration"); err != nil {
		t.Fatal(err)
	}
	if err := l.Measure(t.Context(), 1); err != nil || known.noted != 1 {
		t.Errorf("%v, noted %d times", err, known.noted)
	}
}
