package shim

import (
	"slices"
	"strings"
	"testing"
)

func TestParseCall(t *testing.T) {
	for line, want := range map[string]call{
		"--root /r --log /l/log.json --log-format json create --bundle /b --pid-file /b/init.pid 5f3a": {
			before: strings.Fields("--root /r --log /l/log.json --log-format json"), command: "create",
			after: strings.Fields("--bundle /b --pid-file /b/init.pid 5f3a"),
		},
		"--root=/r --systemd-cgroup start 5f3a": {before: []string{"--root=/r", "--systemd-cgroup"},
			command: "start", after: []string{"5f3a"}},
		"--version": {before: []string{"--version"}},
		"--log":     {before: []string{"--log"}},
		"list -q":   {command: "list", after: []string{"-q"}},
		"":          {},
	} {
		got := parseCall(strings.Fields(line))
		if got.command != want.command || !slices.Equal(got.before, want.before) ||
			!slices.Equal(got.after, want.after) {
			t.Errorf("%s: %+v", line, got)
		}
	}
	c := parseCall(strings.Fields("create --bundle /b --pid-file=/p --no-pivot 5f3a"))
	if c.id() != "5f3a" || c.flag("--bundle") != "/b" || c.flag("--pid-file") != "/p" ||
		c.flag("--console-socket") != "" || !c.has("--no-pivot") {
		t.Errorf("%+v", c)
	}
	for line, want := range map[string]string{"list -q": "", "kill --all 5f3a 9": "5f3a",
		"kill 5f3a KILL": "5f3a", "kill --all 5f3a": "5f3a", "kill 5f3a": "5f3a", "kill": ""} {
		if id := parseCall(strings.Fields(line)).id(); id != want {
			t.Errorf("%s is of %q, want %q", line, id, want)
		}
	}
}

func TestPlaceOfNobody(t *testing.T) {
	for _, id := range []string{"", "..", "a/b", "-x", ".hidden", strings.Repeat("a", 200)} {
		if dir, err := At("/run/godwit", id); err == nil {
			t.Errorf("%q: %s", id, dir.Path())
		}
	}
}

func FuzzParseCall(f *testing.F) {
	f.Add("--root\x00/r\x00create\x00--bundle\x00/b\x005f3a")
	f.Fuzz(func(_ *testing.T, line string) {
		c := parseCall(strings.Split(line, "\x00"))
		_, _ = c.id(), c.flag("--bundle")
	})
}
