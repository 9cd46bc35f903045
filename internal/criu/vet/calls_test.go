package vet

import (
	"slices"
	"testing"

	defaults "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// defaultFilter is Docker's default profile for a container with these capabilities.
func defaultFilter(t *testing.T, capabilities ...string) *specs.LinuxSeccomp {
	t.Helper()
	filter, err := defaults.GetDefaultProfile(&specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}},
		Linux:   &specs.Linux{},
	})
	check(t, err)
	return filter
}

// without is a filter whose rules leave a system call to the default action, as Docker 20.10 does with
// process_vm_writev.
func without(filter *specs.LinuxSeccomp, name string) *specs.LinuxSeccomp {
	changed := *filter
	changed.Syscalls = nil
	for _, rule := range filter.Syscalls {
		rule.Names = slices.DeleteFunc(slices.Clone(rule.Names), func(n string) bool { return n == name })
		changed.Syscalls = append(changed.Syscalls, rule)
	}
	return &changed
}

func TestPassed(t *testing.T) {
	plain, traces := defaultFilter(t), defaultFilter(t, "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")
	older := without(plain, "process_vm_writev")
	depends := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
		{Names: []string{"bpf"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{}}},
		{Names: []string{"mount"}, Action: specs.ActAllow},
		{Names: []string{"mount"}, Action: specs.ActErrno},
		{Names: []string{"keyctl", "read"}, Action: specs.ActLog},
	}}
	for name, one := range map[string]struct {
		filter *specs.LinuxSeccomp
		want   []string
	}{
		"Docker's default": {plain, []string{"process_vm_writev", "ptrace"}},
		"Docker's default, and capabilities": {traces,
			[]string{"open_by_handle_at", "process_vm_writev", "ptrace"}},
		"an older default":     {older, []string{"ptrace"}},
		"depends on arguments": {depends, []string{"keyctl"}},
	} {
		if got := Passed(one.filter); !slices.Equal(got, one.want) {
			t.Errorf("%s: %v, want %v", name, got, one.want)
		}
	}
	if all := Passed(nil); len(all) != len(dangerous) {
		t.Errorf("without a filter: %v", all)
	}
}

// TestRefused: the advice agrees with the check of the images. No call is both let through and forbidden,
// and what the advice refuses the check refuses.
func TestRefused(t *testing.T) {
	plain := defaultFilter(t)
	older := without(plain, "process_vm_writev")
	for name, one := range map[string]struct {
		filter *specs.LinuxSeccomp
		passed []string
		want   []string
	}{
		"the same profile":   {plain, Passed(plain), nil},
		"a later profile":    {plain, Passed(older), nil},
		"an older profile":   {older, Passed(plain), []string{"process_vm_writev"}},
		"no filter here":     {nil, Passed(nil), nil},
		"nothing known":      {older, nil, nil},
		"no dangerous calls": {older, []string{"read", "", "process_vm_writev\n", "SYS_ptrace"}, nil},
	} {
		if got := Refused(one.filter, one.passed); !slices.Equal(got, one.want) {
			t.Errorf("%s: %v, want %v", name, got, one.want)
		}
	}
	for _, filter := range []*specs.LinuxSeccomp{plain, older} {
		if both := Refused(filter, Passed(filter)); len(both) > 0 {
			t.Errorf("let through, and refused: %v", both)
		}
		var numbers []uint32
		for _, name := range Refused(filter, Passed(nil)) {
			numbers = append(numbers, dangerous[name])
		}
		slices.Sort(numbers)
		if !slices.Equal(numbers, forbidden(filter)) {
			t.Errorf("the advice refuses %v, the check %v", numbers, forbidden(filter))
		}
	}
}
