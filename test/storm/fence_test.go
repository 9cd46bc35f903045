package storm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fence reads the lines of a program that beats: each has the name of a run of the program, a number and a
// time. In a run each number comes once, one after the other, and a run that was followed by another one is
// over.
type fence struct {
	path     string
	restarts bool // the program may be started anew
	offset   int64
	rest     []byte // the beginning of an incomplete line
	line     int
	run      string
	number   uint64
	over     map[string]bool // runs
}

func newFence(path string, restarts bool) *fence {
	return &fence{path: path, restarts: restarts, over: map[string]bool{}}
}

// read reads new lines, and reports whether there were any.
func (f *fence) read() (more bool, err error) {
	file, err := os.Open(f.path)
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.NewSectionReader(file, f.offset, 1<<40))
	if err != nil {
		return false, err
	}
	f.offset += int64(len(data))
	data = append(f.rest, data...)
	for {
		line, after, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			f.rest = bytes.Clone(line)
			return more, nil
		}
		f.line++
		if err := f.take(string(line)); err != nil {
			return false, fmt.Errorf("line %d of %s, %q: %w", f.line, filepath.Base(filepath.Dir(f.path)),
				line, err)
		}
		data, more = after, true
	}
}

// take checks a line.
func (f *fence) take(line string) error {
	var run, said string
	var number uint64
	var at int64
	if _, err := fmt.Sscan(line, &run, &number, &at, &said); err != nil {
		return fmt.Errorf("it is no beat: %w", err)
	}
	switch {
	case said != "ok":
		return fmt.Errorf("what the program held is not what it was: %s", said)
	case f.over[run]:
		return fmt.Errorf("%w: run %s goes on after run %s has begun", errTwice, run, f.run)
	case run != f.run:
		return f.begin(run, number)
	case number <= f.number:
		return fmt.Errorf("%w: number %d comes after %d", errTwice, number, f.number)
	case number != f.number+1:
		return fmt.Errorf("number %d comes after %d: some are lost", number, f.number)
	}
	f.number = number
	return nil
}

// begin checks the first line of a run.
func (f *fence) begin(run string, number uint64) error {
	if f.run != "" && !f.restarts {
		return fmt.Errorf("its state is lost: it was started anew after number %d of run %s", f.number, f.run)
	}
	if number != 0 {
		return fmt.Errorf("run %s begins with number %d", run, number)
	}
	if f.run != "" {
		f.over[f.run] = true
	}
	f.run, f.number = run, number
	return nil
}

// TestFence: the fence finds every kind of error.
func TestFence(t *testing.T) {
	for name, test := range map[string]struct {
		lines    string
		restarts bool
		words    string
	}{
		"goes on":              {"x 0 1 ok\nx 1 2 ok\nx 2", false, ""},
		"starts anew":          {"x 0 1 ok\nx 1 2 ok\ny 0 3 ok\n", true, ""},
		"must not start anew":  {"x 0 1 ok\ny 0 3 ok\n", false, "state is lost"},
		"says a number twice":  {"x 0 1 ok\nx 1 2 ok\nx 1 2 ok\n", false, errTwice.Error()},
		"falls back":           {"x 0 1 ok\nx 1 2 ok\nx 0 2 ok\n", true, errTwice.Error()},
		"leaves a number out":  {"x 0 1 ok\nx 2 2 ok\n", false, "are lost"},
		"two runs at a time":   {"x 0 1 ok\ny 0 2 ok\nx 1 3 ok\n", true, errTwice.Error()},
		"begins in the middle": {"x 4 1 ok\n", false, "begins with"},
		"finds its page wrong": {"x 0 1 page-3-is-wrong\n", false, "page-3"},
		"is cut":               {"x 0\n", false, "no beat"},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(test.lines), 0o600); err != nil {
			t.Fatal(err)
		}
		more, err := newFence(path, test.restarts).read()
		if test.words == "" && (err != nil || !more) || test.words != "" &&
			(err == nil || !strings.Contains(err.Error(), test.words)) {
			t.Errorf("a program that %s: more %v, %v", name, more, err)
		}
	}
}
