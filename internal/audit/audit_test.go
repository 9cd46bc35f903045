package audit

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func read(t *testing.T, l *Log, since time.Time) (entries []Entry) {
	t.Helper()
	if err := l.Read(since, func(e Entry) error { entries = append(entries, e); return nil }); err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestLogIsBoundedPrivateAndInOrder(t *testing.T) {
	l := New(t.TempDir(), Users)
	l.limit = 2000
	began := time.Unix(1000, 0).UTC()
	for i := range 100 {
		entry := Entry{Time: began.Add(time.Duration(i) * time.Second), Method: "Migrate",
			Object: strings.Repeat("x", 999), Outcome: "ok"}
		if err := l.Append(entry); err != nil {
			t.Fatal(err)
		}
	}
	entries := read(t, l, time.Time{})
	if len(entries) < 4 || len(entries) > 12 || entries[len(entries)-1].Time != began.Add(99*time.Second) {
		t.Errorf("%d entries are kept", len(entries))
	}
	for i, entry := range entries {
		if len(entry.Object) != maxTextBytes || (i > 0 && !entries[i-1].Time.Before(entry.Time)) {
			t.Errorf("entry %d: %+v", i, entry)
		}
	}
	if got := read(t, l, began.Add(98*time.Second)); len(got) != 2 {
		t.Errorf("since the last but one: %d", len(got))
	}
	for _, path := range []string{l.path, l.older()} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 || info.Size() > l.limit {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}

// TestBothLogsAreReadInOrder: both logs are read in order, even if one of them is empty, or cannot be read.
func TestBothLogsAreReadInOrder(t *testing.T) {
	dir := t.TempDir()
	users, nodes := New(dir, Users), New(dir, Nodes)
	both := func() (order string, err error) {
		err = ReadBoth(users, nodes, time.Time{}, func(e Entry) error { order += e.Object; return nil })
		return order, err
	}
	for i, log := range []*Log{users, users, nodes, users, nodes, nodes} {
		if got, err := both(); got != "012345"[:i] || err != nil {
			t.Errorf("%d entries are read as %q, %v", i, got, err)
		}
		if err := log.Append(Entry{Time: time.Unix(int64(i), 0), Object: strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	enough := errors.New("enough")
	for _, stop := range []string{"0", "2", "5"} {
		got := ReadBoth(users, nodes, time.Time{}, func(e Entry) error {
			if e.Object == stop {
				return enough
			}
			return nil
		})
		if !errors.Is(got, enough) {
			t.Errorf("stopped at %s: %v", stop, got)
		}
	}
	if err := os.Mkdir(nodes.older(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := both(); err == nil {
		t.Error("a log that cannot be read is no error")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"time":"2026-01-01T00:00:00Z","uid":0,"method":"Run","object":"web","outcome":"ok"}`))
	f.Add([]byte(`{"time":`))
	f.Fuzz(func(t *testing.T, line []byte) {
		_, _ = parse(line) // must not panic
	})
}
