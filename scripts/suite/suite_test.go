package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// script is what go test would say, from short words: what happens, to which test of which package, and text or seconds.
func script(t *testing.T, lines ...string) string {
	t.Helper()
	var text strings.Builder
	for i, line := range lines {
		action, rest, _ := strings.Cut(line, " ")
		at, more, _ := strings.Cut(rest, " ")
		e := event{Time: time.Unix(int64(i), 0), Action: action}
		e.Package, e.Test, _ = strings.Cut(at, ".")
		if strings.HasSuffix(action, "output") {
			e.Output = more + "\n"
		}
		_, _ = fmt.Sscan(more, &e.Elapsed) // none: 0
		document, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(append(document, '\n'))
	}
	return text.String()
}

// told is what is told of a run, and its log.
func told(t *testing.T, stopped error, lines ...string) (text, log string) {
	t.Helper()
	var out, to strings.Builder
	r := newRecord(&out, &to)
	if err := r.read(strings.NewReader(script(t, lines...))); err != nil {
		t.Fatal(err)
	}
	r.flush()
	s := summary{record: r, took: 90 * time.Second, log: "the.log", stopped: stopped, now: time.Unix(int64(len(lines)), 0)}
	s.write(&out)
	return out.String(), to.String()
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for rest := text; len(parts) > 0; parts = parts[1:] {
		_, after, found := strings.Cut(rest, parts[0])
		if !found {
			t.Fatalf("no %q, or not in this order, in:\n%s", parts[0], text)
		}
		rest = after
	}
}

func TestPassed(t *testing.T) {
	text, _ := told(t, nil,
		"start p", "run p.TestA", "output p.TestA     a_test.go:1: nothing of interest", "pass p.TestA 2.5", "run p.TestB", "pass p.TestB 7", "pass p 9.5",
		"start q", "skip q 0")
	has(t, text, "ok  \tp\t9.5s", "9.5 s  p", "7.0 s  p TestB", "2.5 s  p TestA", "1 packages passed, 0 failed, 1 without tests, in 90 s", "test: all passed")
	if strings.Contains(text, "interest") {
		t.Errorf("what passed is told:\n%s", text)
	}
}

func TestFailed(t *testing.T) {
	lines := []string{
		"start p", "run p.TestA", "run p.TestA/sub", "output p.TestA/sub === RUN   TestA/sub", "output p.TestA/sub     a_test.go:7: the first",
		"run p.TestB", "pass p.TestB 0", "output p.TestA/sub         more of it",
	}
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("output p.TestA/sub     a_test.go:8: log %d", i), "output p.TestA/sub         its second line")
	}
	text, log := told(t, nil, append(lines, "output p.TestA/sub     a_test.go:9: the last", "fail p.TestA/sub 1", "fail p.TestA 1", "output p what the package says", "fail p 2")...)
	has(t, text, "FAIL\tp", "--- FAIL: TestA/sub (1.00s) p\n    a_test.go:7: the first\n        more of it", " lines)\n", "a_test.go:9: the last",
		"0 packages passed, 1 failed", "--- FAIL: TestA/sub (1.00s) p: a_test.go:7: the first", "test: FAILED")
	if n := strings.Count(text, "\n"); n > linesOfTest+20 {
		t.Errorf("%d lines:\n%s", n, text)
	}
	if strings.Contains(text, "=== RUN") || strings.Contains(text, "FAIL: TestA (") {
		t.Errorf("what says nothing is told:\n%s", text)
	}
	has(t, log, "=== RUN   TestA/sub", "log 57", "what the package says")
}

// TestFailedPackage: of a package that fails although its tests pass is told what it says itself.
func TestFailedPackage(t *testing.T) {
	text, _ := told(t, nil, "start p", "run p.TestA", "pass p.TestA 0", "output p left over: a mount", "output p FAIL", "fail p 2")
	has(t, text, "--- FAIL: (the package) (2.00s) p\nleft over: a mount\n", "test: FAILED")
}

// TestCrashed: a test that was running when its package came to its end has failed.
func TestCrashed(t *testing.T) {
	text, _ := told(t, nil, "start p", "run p.TestA", "pass p.TestA 0", "run p.TestB", "output p.TestB panic: test timed out after 6m0s", "output p.TestB 	running tests:", "fail p 5")
	has(t, text, "--- FAIL: TestB (3.00s) p\npanic: test timed out", "running tests:", "--- FAIL: TestB (3.00s) p: panic: test timed out after 6m0s")
}

// TestLongMessage: of a log that a test shows are told the beginning and the end.
func TestLongMessage(t *testing.T) {
	output := []string{"    a_test.go:1: first of all\n", "    a_test.go:2: log:\n"}
	for i := range 50 {
		output = append(output, fmt.Sprintf("        line %d\n", i))
	}
	output = append(output, "    a_test.go:3: "+strings.Repeat("x", 5000)+"\n")
	got := bounded(output)
	if len(got) != 1+linesOfMessage+1 || got[len(got)-2] != "        line 49\n" || len(got[len(got)-1]) > bytesOfLine+10 {
		t.Errorf("%d lines: %q", len(got), got)
	}
}

func TestBuildFails(t *testing.T) {
	text, _ := told(t, nil, "build-output . p/x.go:1: no such thing", "build-fail .", "start p", "output p FAIL	p [build failed]", "fail p 0")
	has(t, text, "no such thing", "--- FAIL: (the package) (0.00s) p\nFAIL	p [build failed]")
}

func TestCutOff(t *testing.T) {
	text, log := told(t, errors.New("the tests took longer than 20m0s"), "start p", "run p.TestA", "pass p.TestA 0", "run p.TestB", "run p.TestB/sub", "output p.TestB/sub so far", "start q")
	has(t, text, "stopped: the tests took longer than 20m0s", "was running: p TestB/sub, for 3 s", "was running: q (no test), for 1 s", "test: FAILED")
	if strings.Contains(text, "p TestB,") || !strings.Contains(log, "so far") {
		t.Errorf("%s\nlog: %s", text, log)
	}
}

// TestEnd: the end of the time ends the tests themselves, too, and they may clean up.
func TestEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, content := range map[string]string{"go.mod": "module example.com/m\n\ngo 1.26\n", "m_test.go": hanging} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	go func() {
		for !there("hangs") && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		end()
	}()
	var out, log strings.Builder
	r := newRecord(&out, &log)
	if err := goTest(ctx, []string{"-count=1", "./..."}, r); err == nil {
		t.Error("a test passed that hung")
	}
	r.flush()
	has(t, log.String(), "RUN   TestHang")
	if !there("cleaned") {
		t.Error("a test was ended without having been told")
	}
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// hanging is a test that hangs until it is told to end.
const hanging = `package m

import ("os"; "os/signal"; "syscall"; "testing")

func TestHang(t *testing.T) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	_ = os.WriteFile("hangs", nil, 0o644)
	<-told
	_ = os.WriteFile("cleaned", nil, 0o644)
	os.Exit(1)
}
`
