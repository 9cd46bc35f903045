package migration

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCompare(t *testing.T) {
	base := Platform{
		Architecture: "amd64", CPUModel: "AMD EPYC 9B45", CPUFeatures: []string{"sse2", "avx2", "avx512f"},
		Kernel: "6.18.44", CRIU: "4.2.1", PageBytes: 4096,
		Cgroups: []string{"cpu,cpuacct", "memory", "name=systemd", "unified"},
	}
	for name, test := range map[string]struct {
		change   func(source, target *Platform)
		problem  string // in one of them; empty: none
		warnings int
	}{
		"same":         {func(_, _ *Platform) {}, "", 0},
		"architecture": {func(_, t *Platform) { t.Architecture = "arm64" }, "architecture arm64", 0},
		"page size":    {func(_, t *Platform) { t.PageBytes = 65536 }, "page size 65536", 0},
		"more cgroups": {func(_, t *Platform) { t.Cgroups = append([]string{"blkio"}, t.Cgroups...) },
			"", 0},
		"other cgroups": {func(_, t *Platform) { t.Cgroups = []string{"cpu", "memory", "unified"} },
			"that contain the container: cpu,cpuacct name=systemd", 0},
		"cgroups of version 2": {func(_, t *Platform) { t.Cgroups = []string{"unified"} },
			"cpu,cpuacct memory name=systemd", 0},
		"cgroups of version 1": {func(s, _ *Platform) { s.Cgroups = []string{"unified"} }, "version 1 beside",
			0},
		"all of version 2": {func(s, t *Platform) {
			s.Cgroups, t.Cgroups = []string{"unified"},
				[]string{"unified"}
		}, "", 0},
		"more features": {func(_, t *Platform) {
			t.CPUFeatures = []string{"avx512f", "amx_tile", "avx2",
				"sse2"}
		}, "", 0},
		"fewer features": {func(_, t *Platform) { t.CPUFeatures = []string{"sse2"} },
			"the container may use: avx2 avx512f", 0},
		"no features known": {func(_, t *Platform) { t.CPUFeatures = nil }, "avx2 avx512f sse2", 0},
		"kernel's own flags": {func(s, _ *Platform) {
			s.CPUFeatures = append(s.CPUFeatures, "constant_tsc",
				"smep", "vmx")
		}, "", 0},
		"unknown flag": {func(s, _ *Platform) { s.CPUFeatures = append(s.CPUFeatures, "avx4096") }, "avx4096",
			0},
		"flags count on arm64": {func(s, t *Platform) {
			s.Architecture, t.Architecture = "arm64", "arm64"
			s.CPUFeatures = append(s.CPUFeatures, "cpuid")
		}, "cpuid", 0},
		"newer kernel":        {func(_, t *Platform) { t.Kernel = "6.19.0-rc1" }, "", 0},
		"other stable kernel": {func(_, t *Platform) { t.Kernel = "6.18.2+deb14-amd64" }, "", 0},
		"older kernel":        {func(_, t *Platform) { t.Kernel = "6.1.0-40-amd64" }, "", 1},
		"strange kernel":      {func(_, t *Platform) { t.Kernel = "custom" }, "", 1},
		"newer CRIU":          {func(_, t *Platform) { t.CRIU = "4.10" }, "", 0},
		"older CRIU":          {func(_, t *Platform) { t.CRIU = "4.1.1" }, "", 1},
		"much older CRIU":     {func(_, t *Platform) { t.CRIU = "3.17.1" }, "CRIU 3.17.1", 0},
		"unknown CRIU":        {func(_, t *Platform) { t.CRIU = "" }, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			source, target := base, base
			source.CPUFeatures, target.CPUFeatures = slices.Clone(base.CPUFeatures),
				slices.Clone(base.CPUFeatures)
			test.change(&source, &target)
			problems, warnings := Compare(source, target)
			text := ""
			for _, p := range problems {
				text += p.What + ": " + p.Why + "\n"
				if p.What == "" || p.Why == "" || p.Remedy == "" {
					t.Errorf("incomplete problem %+v", p)
				}
			}
			if (test.problem == "") != (len(problems) == 0) || !strings.Contains(text, test.problem) {
				t.Errorf("problems %q, want %q", text, test.problem)
			}
			if len(warnings) != test.warnings {
				t.Errorf("warnings %q, want %d", warnings, test.warnings)
			}
		})
	}
}

func TestCompareBoundsWhatThePeerSays(t *testing.T) {
	source := Platform{Architecture: "amd64", Kernel: strings.Repeat("9", 1e6),
		CPUFeatures: slices.Repeat([]string{"x"}, 1e5)}
	for i := range source.CPUFeatures {
		source.CPUFeatures[i] = strings.Repeat("f", 200) + string(rune('a'+i%26)) + strings.Repeat("g", i%300)
	}
	problems, warnings := Compare(source, Platform{Architecture: "amd64", Kernel: "6.1.1"})
	size := 0
	for _, p := range problems {
		size += len(p.What) + len(p.Why)
	}
	for _, w := range warnings {
		size += len(w)
	}
	if size > 8192 {
		t.Errorf("%d bytes of text", size)
	}
}

func TestParseMode(t *testing.T) {
	if mode, err := ParseMode("cold"); err != nil || mode != Cold {
		t.Errorf("cold: %v, %v", mode, err)
	}
	for name, want := range map[string]string{
		"":         `no such mode: ""; available: cold, pre-copy, post-copy, hybrid, restart, auto`,
		"live\xff": "no such mode: \"live?\"; available: cold, pre-copy",
	} {
		if _, err := ParseMode(name); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// TestStepLists: a mode is only as right as its list of steps.
func TestStepLists(t *testing.T) {
	for _, mode := range Modes() {
		steps := Steps(mode)
		if len(steps) == 0 {
			continue
		}
		names := map[StepName]bool{}
		final, commit := -1, -1
		for i, s := range steps {
			if names[s.Name] || s.Undo != "" && names[s.Undo] {
				t.Errorf("%s: %s is there twice", mode, s.Name)
			}
			names[s.Name], names[s.Undo] = true, s.Undo != ""
			if s.Phase == "" {
				t.Errorf("%s: %s has no phase", mode, s.Name)
			}
			if s.Final {
				if final >= 0 || s.At != Source {
					t.Errorf("%s: %s cannot emit the final marker", mode, s.Name)
				}
				final = i
			}
			if s.Commit {
				if commit >= 0 || s.At != Target || s.Answer != KindRunning {
					t.Errorf("%s: %s cannot be the commit", mode, s.Name)
				}
				commit = i
			}
			if s.At == Source && (s.Ask != "" || s.Answer != "") {
				t.Errorf("%s: %s is the source's, nobody asks for it", mode, s.Name)
			}
			if commit >= 0 && i > commit && s.Undo != "" {
				t.Errorf("%s: %s comes after the commit and cannot be undone", mode, s.Name)
			}
		}
		if final < 0 || commit < final {
			t.Errorf("%s: final marker %d, commit %d", mode, final, commit)
		}
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "Web-1", "0.x_y", strings.Repeat("a", 63)} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "-a", "_a", "a/b", "a b", "a\x00", "ä",
		"a\n", strings.Repeat("a", 64), "../x"} {
		if CheckName(name) == nil || CheckNode(name) == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	for _, id := range []string{
		"", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdef0", "../../../../../ab",
		"0123456789abcde\n",
	} {
		if CheckID(id) == nil {
			t.Errorf("id %q was accepted", id)
		}
	}
	if err := CheckContainerID(strings.Repeat("f", 64)); err != nil {
		t.Error(err)
	}
	if CheckContainerID(strings.Repeat("f", 63)) == nil || CheckRoute("a", "a") == nil ||
		CheckRoute("a", "b") != nil {
		t.Error("container id or route")
	}
	for d, good := range map[time.Duration]bool{
		0: true, time.Second: true, time.Hour: true, -1: false, time.Millisecond: false, math.MaxInt64: false,
	} {
		if (CheckTimeout(d) == nil) != good {
			t.Errorf("timeout %s", d)
		}
	}
}

func TestMeter(t *testing.T) {
	var m Meter
	if rate := m.Observe(ms(0), 0); rate != 0 {
		t.Errorf("first: %g", rate)
	}
	m.Observe(ms(500), 0) // idle time before the beginning must not count
	if rate := m.Observe(ms(1000), 5e6); rate != 0 {
		t.Errorf("buffers that fill: %g", rate)
	}
	if rate := m.Observe(ms(1500), 10e6); math.Abs(rate-1e7) > 1 {
		t.Errorf("10 MB/s: %g", rate)
	}
	if rate := m.Observe(ms(1510), 14e6); math.Abs(rate-1e7) > 1 {
		t.Errorf("too soon to tell: %g", rate)
	}
	for i := range 100 {
		m.Observe(ms(1600+100*float64(i)), 10e6+int64(i+1)*2e6)
	}
	if rate := m.Observe(ms(11600), 10e6+101*2e6); math.Abs(rate-2e7) > 1e5 {
		t.Errorf("20 MB/s: %g", rate)
	}
	if rate := m.Observe(ms(500), 0); rate < 0 || math.IsNaN(rate) {
		t.Errorf("clock set back: %g", rate)
	}
	for i := range 60 {
		m.Observe(ms(600+1000*float64(i)), 0)
	}
	if rate := m.Observe(ms(62000), 0); rate > 1 {
		t.Errorf("stalled: %g", rate)
	}
}

func TestEstimate(t *testing.T) {
	for _, test := range []struct {
		p    Progress
		want float64
	}{
		{Progress{DoneBytes: 25, TotalBytes: 100, Rate: 25}, 3},
		{Progress{DoneBytes: 25, TotalBytes: 100}, 0},
		{Progress{DoneBytes: 25, Rate: 25}, 0},
		{Progress{DoneBytes: 125, TotalBytes: 100, Rate: 25}, 0},
		{Progress{DoneBytes: -25, TotalBytes: math.MaxInt64, Rate: 25}, 0},
		{Progress{TotalBytes: math.MaxInt64, Rate: 1e-300}, 0},
	} {
		if got := test.p.Estimate().LeftTime; got != test.want {
			t.Errorf("%+v: %g, want %g", test.p, got, test.want)
		}
	}
}
