package files

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// TestHostileTarget: what a target says that makes no sense ends the rounds.
func TestHostileTarget(t *testing.T) {
	say := func(kind, name string) func(data *stream.Session) error {
		return func(data *stream.Session) error {
			if err := errors.Join(data.Begin(kind, name), data.End(), data.Push()); err != nil {
				return err
			}
			_, err := data.Next()
			return err
		}
	}
	for want, far := range map[string]func(data *stream.Session) error{
		`a section "nonsense" comes`: say("nonsense", ""),
		"an invalid round":           say(kindPlaced, "first"),
		"without a request":          say(kindKept, ""),
		"was not asked about": func(data *stream.Session) error {
			return errors.Join(data.Begin(kindPlaced, "0"), data.End(), say(kindPlaced, "1")(data))
		},
	} {
		m := newMove(t)
		m.far = far
		if err := m.sender.Open(t.Context()); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if err := <-m.lost; !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// TestTargetEnds: a round waits for no target that has gone, and no longer than its step.
func TestTargetEnds(t *testing.T) {
	gone := func(data *stream.Session) error { return data.Finish() }
	m := newMove(t)
	m.far = gone
	if err := m.round(); err == nil {
		t.Error("a round is in place")
	}
	m = newMove(t)
	m.keptHere, m.far = true, gone
	if err := m.round(); err == nil {
		t.Error("a target that has gone has told what it has")
	}
	m = newMove(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	m.far = func(data *stream.Session) error { // it takes the round, and says nothing
		section, err := data.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, section)
		}
		cancel(errTest)
		<-m.ended
		return err
	}
	check(t, m.sender.Open(t.Context()))
	if err := m.sender.Round(ctx); !errors.Is(err, errTest) {
		t.Error(err)
	}
}

// TestNothingToSend: a step fails without the container's directories, or a connection.
func TestNothingToSend(t *testing.T) {
	m := newMove(t)
	m.noTrees = errTest
	for what, do := range map[string]func(context.Context) error{
		"make": m.sender.Make, "open": m.sender.Open, "copy": m.sender.Copy, "cold": m.sender.Cold,
	} {
		if err := do(t.Context()); !errors.Is(err, errTest) {
			t.Errorf("%s: %v", what, err)
		}
	}
	m.noTrees, m.noLink, m.keptHere = nil, errTest, true
	for what, do := range map[string]func(context.Context) error{
		"copy": m.sender.Copy, "cold": m.sender.Cold,
		"checkpoints": func(ctx context.Context) error { return m.sender.Checkpoints(ctx, 1, nil) },
	} {
		err := do(t.Context())
		if !errors.Is(err, errTest) || !strings.Contains(err.Error(), "open a connection for files to b: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	m.keptHere = false
	check(t, m.sender.Cold(t.Context())) // needs none
}

// TestCopyEnds: rounds end when what is left is little, or when something says that they must.
func TestCopyEnds(t *testing.T) {
	long := time.Hour
	for _, c := range []struct {
		settings migration.Settings
		wanted   string
		rounds   int
		why      string
	}{
		{migration.Settings{DowntimeTarget: long}, "", 1, ""},
		{migration.Settings{MaxRounds: 3}, "", 3, "the limit of rounds is reached"},
		{migration.Settings{Timeout: 1}, "", 1, "half of the allowed time has passed"},
		{migration.Settings{}, "somebody is impatient", 1, "somebody is impatient"},
	} {
		m := newMove(t)
		m.settings, m.wanted = c.settings, c.wanted
		m.write("layer/a", []byte("one"))
		check(t, m.sender.Copy(t.Context()))
		report := m.tracker.Report(migration.Record{Spec: m.tracker.Spec}, false)
		told := slices.ContainsFunc(report.Decisions, func(d string) bool {
			return strings.HasSuffix(d, " ms of the freeze, and "+c.why)
		})
		if len(m.sender.history) != c.rounds || told != (c.why != "") {
			t.Errorf("%+v: %d rounds, and the report has %q", c.settings, len(m.sender.history),
				report.Decisions)
		}
		m.settings.OnNoConvergence = migration.GiveUp
		if err := m.sender.Copy(t.Context()); errors.Is(err, ErrNotConverging) != (c.why != "") {
			t.Errorf("%+v: giving up: %v", c.settings, err)
		}
	}
}

// TestCopyGivesUpOutrun: a mode that nobody has named is not worth copies that are out of date at once.
func TestCopyGivesUpOutrun(t *testing.T) {
	m := newMove(t)
	m.sender.history = []copies.Stats{{SentBytes: 400e6, Duration: 32 * time.Second},
		{SentBytes: 390e6, Duration: 31 * time.Second}}
	err := m.sender.endOutrun()
	const told = "400 MB of files were copied in 32 s, and then 390 MB had changed"
	if !errors.Is(err, errOutrun) || !strings.Contains(err.Error(), told) ||
		!strings.Contains(err.Error(), "a freeze of about 63 s") {
		t.Error(err)
	}
}

// TestTakeInFreeze: of the first round only what may have changed counts, later what changed last.
func TestTakeInFreeze(t *testing.T) {
	m := newMove(t)
	if left := m.sender.TakeInFreeze(); left != 0 {
		t.Errorf("without a round: %s", left)
	}
	m.speed = 1e6
	m.sender.history = []copies.Stats{{SentBytes: 1e9, UnsettledBytes: 1e6, ScanTime: time.Second}}
	if left := m.sender.TakeInFreeze().Round(time.Second); left != 2*time.Second {
		t.Errorf("after the first round: %s", left)
	}
	m.sender.history = append(m.sender.history, copies.Stats{SentBytes: 3e6})
	if left := m.sender.TakeInFreeze(); left != 3*time.Second {
		t.Errorf("after the second round: %s", left)
	}
	m.speed = 0
	if left := m.sender.TakeInFreeze(); left != 0 {
		t.Errorf("over a link of which nothing is known: %s", left)
	}
}

// TestFollow: a round comes only when the last one was long ago.
func TestFollow(t *testing.T) {
	m := newMove(t)
	check(t, m.round())
	m.sender.history[0].Duration = time.Hour
	check(t, m.sender.Follow(t.Context()))
	if len(m.sender.history) != 1 {
		t.Error("a round came soon after another one")
	}
	m.sender.history[0].Duration = 0
	check(t, m.sender.EndRounds(t.Context()))
	if len(m.sender.history) != 2 {
		t.Error("no round came long after the last one")
	}
	if err := m.sender.Round(t.Context()); err == nil {
		t.Error("a round came after the end")
	}
	m = newMove(t)
	m.settings.Checkpoints = 1
	check(t, m.round())
	m.sender.history[0].Duration = 0
	check(t, m.sender.EndRounds(t.Context()))
	if len(m.sender.history) != 1 {
		t.Error("a round came that the user did not want")
	}
}

// TestCheckpoints: before the last of them, all else has to be there.
func TestCheckpoints(t *testing.T) {
	m := newMove(t)
	rounds := -1
	await := func(context.Context) error {
		rounds = len(m.sender.history)
		return nil
	}
	check(t, m.sender.Checkpoints(t.Context(), 3, await))
	if len(m.sender.history) != 3 || rounds != 2 {
		t.Errorf("%d rounds, of which %d while something was awaited", len(m.sender.history), rounds)
	}
	fails := func(context.Context) error { return errTest }
	if err := m.sender.Checkpoints(t.Context(), 1, fails); !errors.Is(err, errTest) {
		t.Error(err)
	}
}

// TestMapped: files that a process has mapped are found, and processes that have ended have none.
func TestMapped(t *testing.T) {
	m := newMove(t)
	path := filepath.Join(m.from, "mapped")
	m.write("mapped", make([]byte, os.Getpagesize()))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer file.Close()
	memory, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	check(t, err)
	defer unix.Munmap(memory)
	var stat unix.Stat_t
	check(t, unix.Fstat(int(file.Fd()), &stat))
	const noProcess = 1 << 30
	m.pids = []int{noProcess, os.Getpid()}
	found, err := m.sender.mapped(t.Context())
	if err != nil || !found.Inodes[stat.Ino] || !found.Names["mapped"] {
		t.Errorf("%+v, %v", found, err)
	}
	m.noTrees = errTest
	if _, err := m.sender.mapped(t.Context()); !errors.Is(err, errTest) {
		t.Error(err)
	}
}

// TestLateSection: others may send their sections until there is much in a late one. What could not be sent
// is an error.
func TestLateSection(t *testing.T) {
	near, far := streamtest.Pair(t)
	out := stream.NewSections(near, nil)
	small := &lateSection{out: out, kind: "small"}
	_, err := small.Write([]byte("x"))
	check(t, err)
	large := &lateSection{out: out, kind: "large"}
	ended := make(chan error, 1)
	go func() {
		_, err := large.Write(make([]byte, earlyBytes))
		if err == nil {
			_, err = large.Write([]byte("y"))
		}
		ended <- errors.Join(err, large.Close(), small.Close(), near.Flush())
	}()
	for _, want := range []string{"large", "small"} {
		section, err := far.Next()
		check(t, err)
		if section.Kind != want {
			t.Errorf("%s comes before %s", section.Kind, want)
		}
		_, err = io.Copy(io.Discard, section)
		check(t, err)
	}
	check(t, <-ended)
	check(t, near.Finish())
	small.section = nil
	if _, err := small.Write(make([]byte, earlyBytes+1)); err == nil {
		t.Error("a section begins over a connection that has ended")
	}
	if small.Close() == nil {
		t.Error("a section ends over a connection that has ended")
	}
}
