// Package audit logs the calls that users make to a node, and their outcomes: one JSON document per line, in files that only
// root can read, rotated so that they stay bounded.
//
// It logs the method and the name of the object, and never arguments, environment values or tokens: an Entry has no field for
// them. It must not know what methods do.
package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	fileName     = "audit.log"
	olderName    = "audit.log.1"
	maxFileBytes = 8 << 20
	maxTextBytes = 256
)

// Entry is one call.
type Entry struct {
	Time    time.Time `json:"time"`
	UID     *uint32   `json:"uid,omitempty"` // of a local user
	GID     *uint32   `json:"gid,omitempty"`
	PID     int32     `json:"pid,omitempty"`
	Node    string    `json:"node,omitempty"`   // that asked
	Method  string    `json:"method"`           // of the agent's service
	Object  string    `json:"object,omitempty"` // container, node, image, volume or migration
	Outcome string    `json:"outcome"`          // ok, or the kind of error
	Error   string    `json:"error,omitempty"`
}

// Log is the audit log of a node.
type Log struct {
	dir   string
	limit int64 // of one file, of which there are two
	mu    sync.Mutex
}

// New makes a log in a directory; its files appear with the first entry.
func New(dir string) *Log { return &Log{dir: dir, limit: maxFileBytes} }

// Append writes an entry. Long texts are cut.
func (l *Log) Append(entry Entry) error {
	entry.Object, entry.Error = cut(entry.Object), cut(entry.Error)
	line, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	path := filepath.Join(l.dir, fileName)
	if info, err := os.Stat(path); err == nil && info.Size()+int64(len(line)) >= l.limit {
		if err := os.Rename(path, filepath.Join(l.dir, olderName)); err != nil {
			return fmt.Errorf("rotate the audit log: %w", err)
		}
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
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

// Read passes the entries since a time to each, oldest first. It leaves out a line that a crash has cut short.
func (l *Log) Read(since time.Time, each func(Entry) error) error {
	for _, name := range []string{olderName, fileName} {
		if err := l.readFile(name, since, each); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) readFile(name string, since time.Time, each func(Entry) error) error {
	file, err := os.Open(filepath.Join(l.dir, name))
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
		return fmt.Errorf("audit log %s: %w", name, err)
	}
	return nil
}

func parse(line []byte) (entry Entry, err error) {
	err = json.Unmarshal(line, &entry)
	return entry, err
}
