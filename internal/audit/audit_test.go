package audit

import (
	"os"
	"path/filepath"
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
	l := New(t.TempDir())
	l.limit = 2000
	began := time.Unix(1000, 0).UTC()
	for i := range 100 {
		entry := Entry{Time: began.Add(time.Duration(i) * time.Second), Method: "Migrate", Object: strings.Repeat("x", 999), Outcome: "ok"}
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
	for _, name := range []string{fileName, olderName} {
		info, err := os.Stat(filepath.Join(l.dir, name))
		if err != nil || info.Mode().Perm() != 0o600 || info.Size() > l.limit {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"time":"2026-01-01T00:00:00Z","uid":0,"method":"Run","object":"web","outcome":"ok"}`))
	f.Add([]byte(`{"time":`))
	f.Fuzz(func(t *testing.T, line []byte) {
		_, _ = parse(line) // must not panic
	})
}
