package kernel

import (
	"slices"
	"strings"
	"testing"
)

func TestReadMachine(t *testing.T) {
	m, err := ReadMachine()
	if err != nil {
		t.Fatal(err)
	}
	if m.Architecture == "" || m.KernelRelease == "" || len(m.CPUFeatures) == 0 ||
		m.MemoryAvailableBytes <= 0 ||
		m.MemoryAvailableBytes > m.MemoryTotalBytes {
		t.Errorf("incomplete: %+v", m)
	}
	if missing := MissingFeatures(m, m); missing != nil {
		t.Errorf("the machine lacks what it has: %v", missing)
	}
}

func TestMissingFeatures(t *testing.T) {
	source := Machine{Architecture: "amd64", CPUFeatures: []string{"avx2", "pti", "sse4_2", "vmx"}}
	target := Machine{Architecture: "amd64", CPUFeatures: []string{"sse4_2"}}
	if got := MissingFeatures(source, target); !slices.Equal(got, []string{"avx2"}) {
		t.Errorf("missing %v, want avx2 alone: programs do not see the others", got)
	}
	source.Architecture, target.Architecture = "arm64", "arm64"
	source.CPUFeatures = []string{"sve"}
	if got := MissingFeatures(source, target); !slices.Equal(got, []string{"sve"}) {
		t.Errorf("missing %v, want sve", got)
	}
}

// TestParseCPU checks that only features of all processors count: a process may run on any.
func TestParseCPU(t *testing.T) {
	text := "model name\t: A\nflags\t\t: sse avx fpu\n\nmodel name\t: B\nflags\t\t: fpu sse\n"
	_, features, err := parseCPU(strings.NewReader(text))
	if err != nil || !slices.Equal(features, []string{"fpu", "sse"}) {
		t.Errorf("features %v, %v, want fpu and sse", features, err)
	}
}

func TestParseMemory(t *testing.T) {
	total, available, err := parseMemory("MemTotal:  200 kB\nMemFree: 1 kB\nMemAvailable: 100 kB\n")
	if err != nil || total != 200<<10 || available != 100<<10 {
		t.Errorf("%d, %d, %v", total, available, err)
	}
	for _, bad := range []string{"", "MemTotal: 1 kB\n", "MemTotal: 1 kB\nMemAvailable: -5 kB\n",
		"MemTotal: 1 kB\nMemAvailable: 99999999999999999999 kB\n"} {
		if _, _, err := parseMemory(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
