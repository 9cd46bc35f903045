package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// event is a line of go test -json; `go doc test2json` says what there is.
type event struct {
	Time        time.Time
	Action      string
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// test is one test, or with an empty name what belongs to its package as a whole.
type test struct {
	pkg, name string
	began     time.Time
	ended     bool
	result    string // an event's action
	took      time.Duration
	output    []string
}

// record is what is known of a run of tests.
type record struct {
	out, log io.Writer
	tests    map[string]*test
	order    []*test // as they began
	pending  map[string][]string
}

func newRecord(out, log io.Writer) *record {
	return &record{out: out, log: log, tests: map[string]*test{}, pending: map[string][]string{}}
}

// read takes events until there are no more. What is no event is passed on.
func (r *record) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		var e event
		switch {
		case line == "":
		case json.Unmarshal([]byte(line), &e) != nil:
			r.say(line)
		default:
			r.take(e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *record) take(e event) {
	if e.Package == "" { // of a build
		if e.Output != "" {
			r.say(e.Output)
		}
		return
	}
	t := r.find(e)
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
		r.pending[e.Package] = append(r.pending[e.Package], e.Output)
	case "pass", "fail", "skip":
		t.ended, t.result, t.took = true, e.Action, time.Duration(e.Elapsed*float64(time.Second))
		if t.result == "pass" {
			t.output = nil
		}
		if t.name == "" {
			r.failRunning(t, e.Time)
			r.endPackage(t)
		}
	}
}

// failRunning has tests failed that had not ended when their package failed: it has crashed, or go test has ended it.
func (r *record) failRunning(pkg *test, at time.Time) {
	for _, t := range r.order {
		if pkg.result == "fail" && t.pkg == pkg.pkg && !t.ended {
			t.ended, t.result, t.took = true, "fail", at.Sub(t.began)
		}
	}
}

func (r *record) find(e event) *test {
	key := e.Package + " " + e.Test
	t := r.tests[key]
	if t == nil {
		t = &test{pkg: e.Package, name: e.Test, began: e.Time}
		r.tests[key] = t
		r.order = append(r.order, t)
	}
	return t
}

// endPackage says how a package has ended, and writes its output to the log, in one piece although others may be beside it.
func (r *record) endPackage(t *test) {
	words := map[string]string{"pass": "ok  ", "fail": "FAIL", "skip": "?   "}
	r.flushPackage(t.pkg)
	fmt.Fprintf(r.out, "%s\t%s\t%.1fs\n", words[t.result], t.pkg, t.took.Seconds())
	for _, of := range r.order {
		if of.pkg == t.pkg && of.name != "" && of.result == "fail" {
			fmt.Fprintf(r.out, "    failed: %s (%.1fs)\n", of.name, of.took.Seconds())
		}
	}
}

func (r *record) flushPackage(pkg string) {
	_, _ = io.WriteString(r.log, strings.Join(r.pending[pkg], "")) // a full disk must not end the tests
	delete(r.pending, pkg)
}

// flush writes to the log what has been said by packages that have not come to an end.
func (r *record) flush() {
	for _, t := range r.order {
		r.flushPackage(t.pkg)
	}
}

// say passes a line on.
func (r *record) say(line string) {
	_, _ = io.WriteString(io.MultiWriter(r.out, r.log), line)
}

func (r *record) failed() bool {
	for _, t := range r.order {
		if t.result == "fail" {
			return true
		}
	}
	return false
}
