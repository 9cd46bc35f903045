package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine"
)

// specWith writes a bundle whose filter lets some system calls through, and no others.
func specWith(t *testing.T, dir string, passed ...string) {
	t.Helper()
	filter := &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno,
		Syscalls:      []specs.LinuxSyscall{{Names: passed, Action: specs.ActAllow}},
	}
	data, err := json.Marshal(specs.Spec{Root: &specs.Root{}, Linux: &specs.Linux{Seccomp: filter}})
	must(t, err)
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600))
}

// TestAgree: a container whose processes may do more than the engine's specification allows is refused when
// the engine has started it, before any state comes.
func TestAgree(t *testing.T) {
	e, id := awayEngine(t), strings.Repeat("a", 64)
	adapt(e, &garbageAdapter{})
	dir, err := e.lookup.restoreDir(id)
	must(t, err)
	specWith(t, filepath.Join(dir.Path(), "bundle"), "ptrace")
	for _, one := range []struct {
		passed []string
		words  string
	}{
		{nil, ""}, {[]string{}, ""}, {[]string{"ptrace", "read", "what\x1b[31m"}, ""},
		{[]string{"process_vm_writev", "ptrace"}, "seccomp profile of Some at the target: it forbids " +
			"process_vm_writev, which"},
		{[]string{"setns", "mount", "bpf", "keyctl", "umount2"},
			"forbids bpf, keyctl, mount and 2 more, which"},
	} {
		a := &arrival{arrivals: e.arrivals, title: "Some", restoreDir: dir,
			definition: engine.Definition{Passed: one.passed}}
		err := a.agree()
		if one.words == "" && err != nil || one.words != "" && (err == nil ||
			!strings.Contains(err.Error(), one.words)) {
			t.Errorf("%v: %v", one.passed, err)
		}
	}
	must(t, os.RemoveAll(dir.Path()))
	if err := (&arrival{restoreDir: dir}).agree(); err == nil {
		t.Error("it agrees with nothing")
	}
}

// TestPassed: what the processes of a container that came may do is what was noted then, and not what the
// specification says that this node's engine has made of it, until the engine starts others.
func TestPassed(t *testing.T) {
	e := awayEngine(t)
	adapt(e, &garbageAdapter{})
	bundle := t.TempDir()
	specWith(t, bundle, "ptrace", "process_vm_writev")
	passed := func(id, bundle string) []string {
		ctr := engine.Container{Definition: engine.Definition{ID: id}, PID: os.Getpid()}
		return e.passed("own"+id, ctr, Process{Bundle: bundle})
	}
	came, older, local := strings.Repeat("1", 64), strings.Repeat("2", 64), strings.Repeat("3", 64)
	for _, id := range []string{came, older} {
		must(t, e.records.remember(id, "own"+id))
		dir, err := e.lookup.restoreDir("own" + id)
		must(t, err)
		must(t, os.MkdirAll(dir.Path(), 0o700))
	}
	// v0.1.0 notes nothing of the other
	must(t, save(e.records.passedPath(came), []string{"ptrace", "nonsense"}))
	for id, want := range map[string][]string{came: {"ptrace"}, older: nil} {
		if got := passed(id, bundle); !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%.4s: %v, want %v", id, got, want)
		}
	}
	if got := passed(local, t.TempDir()); got != nil {
		t.Errorf("without a bundle: %v", got)
	}
	must(t, os.WriteFile(e.records.passedPath(came), []byte("{"), 0o600))
	if got := passed(came, bundle); got != nil {
		t.Errorf("a damaged record is taken for none: %v", got)
	}
	must(t, save(e.records.passedPath(came), []string{"bpf"}))
	dir, err := e.lookup.restoreDir("own" + came)
	must(t, err)
	must(t, os.RemoveAll(dir.Path())) // as when the engine starts it again
	if got, here := passed(came, bundle), passed(local, bundle); !slices.Equal(got, here) {
		t.Errorf("started again: %v, want %v", got, here)
	}
	must(t, e.records.unremember(came))
	if _, err := os.Stat(e.records.passedPath(came)); !os.IsNotExist(err) {
		t.Error(err)
	}
}
