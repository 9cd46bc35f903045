package checkpoint

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine"
)

// only is a filter that lets one system call through.
func only(name string) *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno,
		Syscalls: []specs.LinuxSyscall{{Names: []string{name}, Action: specs.ActAllow}}}
}

func TestPassedCalls(t *testing.T) {
	for name, one := range map[string]struct {
		first, own filtering
		filter     *specs.LinuxSeccomp
		want       []string
	}{
		"the specification's":      {filtering{"2", "1"}, filtering{"0", "0"}, only("bpf"), []string{"bpf"}},
		"within another container": {filtering{"2", "3"}, filtering{"2", "2"}, only("bpf"), []string{"bpf"}},
		"one more":                 {filtering{"2", "2"}, filtering{"0", "0"}, only("keyctl"), nil},
		"Linux before 5.9":         {filtering{"2", ""}, filtering{"0", ""}, only("bpf"), nil},
		"strict":                   {filtering{"1", "0"}, filtering{"0", "0"}, only("keyctl"), nil},
		"no specification":         {filtering{"2", "1"}, filtering{"0", "0"}, nil, nil},
		"gone":                     {filtering{}, filtering{"0", "0"}, only("keyctl"), nil},
	} {
		got := passedCalls(one.first, one.own, one.filter)
		if !slices.Equal(got, one.want) || (got == nil) != (one.want == nil) {
			t.Errorf("%s: %v, want %v", name, got, one.want)
		}
	}
	if all := passedCalls(filtering{"0", "0"}, filtering{"0", "0"}, only("keyctl")); len(all) < 20 {
		t.Errorf("without a filter: %v", all)
	}
	if got := PassedCalls(1<<22+1, only("keyctl")); got != nil {
		t.Errorf("of no process: %v", got)
	}
}

// TestPassedTravels: that nothing is known, which is what v0.1.0 says, is not that no call is let through.
func TestPassedTravels(t *testing.T) {
	for text, want := range map[string][]string{
		`{"passed_system_calls":[]}`: {}, `{"passed_system_calls":["bpf"]}`: {"bpf"}, `{}`: nil,
	} {
		var d engine.Definition
		err := json.Unmarshal([]byte(text), &d)
		if err != nil || !slices.Equal(d.Passed, want) || (d.Passed == nil) != (want == nil) {
			t.Errorf("%s: %v, %v", text, d.Passed, err)
		}
		data, err := json.Marshal(d)
		if err != nil || strings.Contains(string(data), "passed") != (want != nil) {
			t.Errorf("%s, %v", data, err)
		}
	}
}

// TestKnownCalls bounds what comes from another node.
func TestKnownCalls(t *testing.T) {
	long := make([]string, 1000)
	for i := range long {
		long[i] = "ptrace"
	}
	mixed := []string{"bpf", "read", strings.Repeat("x", 1<<20)}
	for want, passed := range map[int][]string{0: nil, 1: mixed, engine.MaxPassedCalls: long} {
		if known := KnownCalls(passed); known == nil || len(known) != want {
			t.Errorf("%d, want %d", len(known), want)
		}
	}
}

func TestCallObstacles(t *testing.T) {
	if got := CallObstacles("Some", only("bpf"), []string{"bpf"}); got != nil {
		t.Errorf("%+v", got)
	}
	got := CallObstacles("Some 3", only("bpf"), []string{"mount", "bpf"})
	if len(got) != 1 || got[0].What != "seccomp profile of Some 3 at the target" ||
		!strings.Contains(got[0].Why, "forbids mount, which") || !strings.Contains(got[0].Remedy, "Some 3") {
		t.Errorf("%+v", got)
	}
	if err := AgreeCalls("Some", &specs.Spec{}, []string{"bpf"}); err != nil {
		t.Errorf("without a filter: %v", err)
	}
}

// FuzzPassed: whatever another node says of system calls, little is kept and said of it.
func FuzzPassed(f *testing.F) {
	f.Add([]byte(`{"passed_system_calls":["bpf","keyctl","mount","ptrace","bpf"]}`))
	f.Add([]byte(`{"passed_system_calls":["bpf\u001b[31m","",null,"BPF"]}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		var d engine.Definition
		if json.Unmarshal(document, &d) != nil {
			return
		}
		kept := KnownCalls(d.Passed)
		if len(kept) > engine.MaxPassedCalls || !slices.Equal(kept, KnownCalls(kept)) {
			t.Errorf("%d calls are kept: %q", len(kept), kept)
		}
		for _, p := range CallObstacles("Some", only("ptrace"), d.Passed) {
			if len(p.Why) > 200 || strings.ContainsFunc(p.Why, unicode.IsControl) {
				t.Errorf("%q is said", p.Why)
			}
		}
	})
}
