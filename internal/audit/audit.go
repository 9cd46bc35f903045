// Package audit logs the calls that users and other nodes make to a node, or to a controller, and their
// outcomes: one JSON document per line, in files that only root can read, rotated so that they stay bounded.
// Users and nodes have separate logs, so that no node can push out the entries of users.
//
// It logs the method and the name of the object, and never arguments, environment values or tokens:
// an Entry has no field for them. It must not know what methods do.
package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// The names of the two logs; their files are NAME.log and NAME.log.1.
const (
	Users = "audit"
	Nodes = "audit-nodes"
)

const (
	maxFileBytes = 8 << 20
	maxTextBytes = 256
)

// Entry is one call.
type Entry struct {
	Time    time.Time `json:"time"`
	UID     *uint32   `json:"uid,omitempty"` // of a local user
	GID     *uint32   `json:"gid,omitempty"`
	PID     int32     `json:"pid,omitempty"`
	User    string    `json:"user,omitempty"`    // of a controller, by the token
	Node    string    `json:"node,omitempty"`    // the calling node, by its certificate
	Address string    `json:"address,omitempty"` // of that node or user
	Method  string    `json:"method"`            // of the agent's service, or the controller's
	Object  string    `json:"object,omitempty"`  // container, node, image, volume or migration
	Outcome string    `json:"outcome"`           // ok, or the kind of error
	Error   string    `json:"error,omitempty"`
}

// Log is one of a node's audit logs.
type Log struct {
	path  string // of the current file
	limit int64  // of one file, of which there are two
	mu    sync.Mutex
}

// New makes a log in a directory; its files appear with the first entry.
func New(dir, name string) *Log {
	return &Log{path: filepath.Join(dir, name+".log"), limit: maxFileBytes}
}

func (l *Log) older() string { return l.path + ".1" }

// Append writes an entry. Long texts are cut.
func (l *Log) Append(entry Entry) error {
	entry.Object, entry.Error = cut(entry.Object), cut(entry.Error)
	line, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if info, err := os.Stat(l.path); err == nil && info.Size()+int64(len(line)) >= l.limit {
		if err := os.Rename(l.path, l.older()); err != nil {
			return fmt.Errorf("rotate the audit log: %w", err)
		}
	}
	file, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	_, err = file.Write(append(line, '\n'))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

func cut(text string) string {
	if len(text) > maxTextBytes {
		return text[:maxTextBytes]
	}
	return text
}

// Read passes the entries since a time to each, oldest first. It skips a line that a crash has truncated.
func (l *Log) Read(since time.Time, each func(Entry) error) error {
	for _, path := range []string{l.older(), l.path} {
		if err := readFile(path, since, each); err != nil {
			return err
		}
	}
	return nil
}

// ReadBoth is Read of two logs, merged by time.
func ReadBoth(a, b *Log, since time.Time, each func(Entry) error) error {
	next, stop := iter.Pull2(b.entries(since))
	defer stop()
	other, err, more := next()
	before := func(entry *Entry) error { // passes on b's entries before an entry; nil: all
		for more && (entry == nil || other.Time.Before(entry.Time)) {
			if err != nil {
				return err
			}
			if err := each(other); err != nil {
				return err
			}
			other, err, more = next()
		}
		return nil
	}
	read := a.Read(since, func(entry Entry) error {
		if err := before(&entry); err != nil {
			return err
		}
		return each(entry)
	})
	if read != nil {
		return read
	}
	return before(nil)
}

var errEnough = errors.New("the reader wants no more entries")

// entries returns the entries for Read; an error comes last.
func (l *Log) entries(since time.Time) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		err := l.Read(since, func(entry Entry) error {
			if !yield(entry, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(Entry{}, err)
		}
	}
}

func readFile(path string, since time.Time, each func(Entry) error) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		entry, err := parse(lines.Bytes())
		if err != nil || entry.Time.Before(since) {
			continue
		}
		if err := each(entry); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("audit log %s: %w", path, err)
	}
	return nil
}

func parse(line []byte) (entry Entry, err error) {
	err = json.Unmarshal(line, &entry)
	return entry, err
}
