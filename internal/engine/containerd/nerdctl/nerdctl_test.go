package nerdctl

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine"
)

var at = Place{Socket: "/run/containerd/containerd.sock", Namespace: "default", ID: strings.Repeat("ab", 32)}

// ofRun returns the labels that nerdctl 2.0 gives a container of `nerdctl run --detach --net none`.
func ofRun() map[string]string {
	return map[string]string{
		"io.containerd.image.config.stop-signal": "SIGTERM", "team": "red",
		"nerdctl/auto-remove": "false",
		"nerdctl/dns":         `{"DNSServers":null,"DNSResolvConfOptions":null,"DNSSearchDomains":null}`,
		"nerdctl/extraHosts":  `["far:10.1.2.3"]`,
		"nerdctl/host-config": `{"BlkioWeight":0,"CidFile":"","Devices":null}`,
		"nerdctl/hostname":    "abababababab",
		"nerdctl/ipc":         `{"mode":"private"}`,
		"nerdctl/log-config":  `{"driver":"json-file","address":"/run/containerd/containerd.sock"}`,
		"nerdctl/log-uri":     LogURI("/usr/local/bin/nerdctl", at), "nerdctl/name": "web",
		"nerdctl/namespace": "default", "nerdctl/networks": `["none"]`,
		"nerdctl/platform": "linux/amd64", "nerdctl/state-dir": at.State(),
	}
}

func with(name, value string) map[string]string {
	labels := ofRun()
	labels[prefix+name] = value
	return labels
}

func TestPlace(t *testing.T) {
	// as in nerdctl's documentation
	if want := "/var/lib/nerdctl/1935db59/containers/default/" + at.ID; at.State() != want {
		t.Errorf("its state is in %s, want %s", at.State(), want)
	}
	hosts := specs.Mount{Destination: "/etc/hosts", Source: "/var/lib/nerdctl/1935db59/etchosts/default/" +
		at.ID + "/hosts"}
	if !at.Keeps(hosts) {
		t.Error("it does not keep its hosts file")
	}
	for _, other := range []specs.Mount{{Destination: "/etc/shadow", Source: hosts.Source},
		{Destination: "/etc/hosts", Source: "/etc/shadow"}, {Destination: "/x"}} {
		if at.Keeps(other) {
			t.Errorf("it keeps %v", other)
		}
	}
}

func TestLabels(t *testing.T) {
	if found := LabelObstacles(at, ofRun(), Annotations(ofRun(), nil)); len(found) > 0 {
		t.Errorf("%v", found)
	}
	for name, values := range map[string][]string{
		"state-dir": {"/etc", at.State() + "/..", "/var/lib/nerdctl/1935db59/containers/other/" + at.ID},
		"namespace": {"other"},
		"name":      {"a\nb", "../x", strings.Repeat("x", 64), "-x"}, "hostname": {"a b", "a\n10.0.0.1 bank"},
		"domainname": {"a\tb"},
		"extraHosts": {`["bank 10.0.0.1:10.0.0.2"]`, `["bank:10.0.0.1\n10.0.0.2 b"]`, `["bank"]`, `{`},
		"networks":   {`["a","b"]`, `["container:x"]`, `["ns:/proc/1/ns/net"]`, `[]`, `"none"`},
		"log-config": {
			`{"driver":"syslog","address":"/run/containerd/containerd.sock"}`,
			`{"driver":"json-file","address":"/run/other.sock"}`,
			`{"driver":"json-file","opts":{"log-path":"/etc/shadow"},"address":"/run/containerd/containerd.sock"}`,
		},
		"ipc": {`{"mode":"shareable","hostShmPath":"/etc"}`,
			`{"mode":"private","hostShmPath":"/etc"}`, `{"mode":"host"}`,
			`{"mode":"private","shmSize":"x y"}`},
		"host-config": {`{"CidFile":"/etc/shadow"}`, `{"Devices":[{}]}`, `x`},
		"mounts":      {`[{"Type":"volume","Name":"box"}]`, `{}`},
		"auto-remove": {"true"}, "ports": {"[]"}, "ip6": {"fe80::1"}, "anonymous-volumes": {`["x"]`},
		"pid-file": {"/run/x"}, "pid-container": {"x"},
		"stop-timeout": {"1h"}, "network-namespace": {"/proc/1/ns/net"}, "bypass4netns": {"true"},
		"user": {strings.Repeat("x", maxLabel+1)},
	} {
		for _, value := range values {
			if found := LabelObstacles(at, with(name, value), nil); len(found) != 1 ||
				!strings.Contains(found[0].What, "nerdctl/"+name) {
				t.Errorf("%s=%.60q: %v", name, value, found)
			}
		}
	}
	for name, value := range map[string]string{"ip": "10.4.0.9", "mac-address": "02:00:00:00:00:01",
		"stop-timeout": "-1", "mounts": `[{"Type":"bind","Source":"/tmp"}]`, "user": "me"} {
		if found := LabelObstacles(at, with(name, value), nil); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// TestForeignLabels checks that a container that is not nerdctl's has none of nerdctl's labels and
// annotations, which its hooks would obey.
func TestForeignLabels(t *testing.T) {
	for _, labels := range []map[string]string{{"nerdctl/name": "web"}, {"nerdctl/networks": `["bridge"]`}} {
		if found := LabelObstacles(at, labels, nil); len(found) == 0 {
			t.Errorf("%v pass", labels)
		}
	}
	if found := LabelObstacles(at, nil, map[string]string{"nerdctl/state-dir": "/etc"}); len(found) != 1 {
		t.Errorf("an annotation without a label: %v", found)
	}
	for _, missing := range []string{labelNetworks, labelLogConfig} {
		labels := ofRun()
		delete(labels, missing)
		if found := LabelObstacles(at, labels, nil); len(found) != 1 {
			t.Errorf("without %s: %v", missing, found)
		}
	}
	told := Annotations(ofRun(), map[string]string{"mine": "x", "nerdctl/state-dir": "/etc",
		"nerdctl/pid-file": "/etc/shadow", "a.nerdctl/b": "c"})
	want := maps.Clone(ofRun())
	maps.DeleteFunc(want, func(name, _ string) bool { return !strings.HasPrefix(name, prefix) })
	want["mine"], want[labelDomain] = "x", ""
	if !maps.Equal(told, want) {
		t.Errorf("its hooks are told %v", told)
	}
}

func TestHooks(t *testing.T) {
	labels := ofRun()
	whatAgainst := func(hooks *specs.Hooks, stdout string) (what []string) {
		for _, one := range HookObstacles(at, hooks, labels, stdout) {
			what = append(what, one.What)
		}
		return what
	}
	made := Hooks("/usr/bin/nerdctl", at, "GODWIT_GUARD=1")
	if what := whatAgainst(made, labels[labelLog]); len(what) > 0 { // it can move again
		t.Errorf("its own: %v", what)
	}
	change := func(change func(hooks *specs.Hooks)) *specs.Hooks {
		hooks := Hooks("/usr/bin/nerdctl", at)
		change(hooks)
		return hooks
	}
	for name, hooks := range map[string]*specs.Hooks{
		"none": nil, "more": change(func(h *specs.Hooks) { h.Poststart = h.Poststop }),
		"two":   change(func(h *specs.Hooks) { h.Poststop = append(h.Poststop, h.Poststop...) }),
		"other": change(func(h *specs.Hooks) { h.Poststop[0].Path = "/usr/bin/rm" }),
		"data root": change(func(h *specs.Hooks) {
			h.Poststop[0].Args = slices.Insert(h.Poststop[0].Args,
				1, "--data-root=/x")
		}),
		"event": change(func(h *specs.Hooks) { h.Poststop = h.CreateRuntime }),
	} {
		if what := whatAgainst(hooks, labels[labelLog]); len(what) != 1 ||
			what[0] != "hooks of the container" {
			t.Errorf("%s: %v", name, what)
		}
	}
	if what := whatAgainst(made, "/run/fifo"); !slices.Equal(what, []string{"its output"}) {
		t.Errorf("in the foreground: %v", what)
	}
	for _, uri := range []string{"", "file:///x", "binary:///bin/sh?-c=rm",
		LogURI("/usr/bin/nerdctl", at) + "&x=y", LogURI("nerdctl", at)} {
		labels[labelLog] = uri
		if what := whatAgainst(made, uri); len(what) != 1 {
			t.Errorf("log %q: %v", uri, what)
		}
	}
}

func TestEntries(t *testing.T) {
	var all []engine.LogEntry
	emit := Entries(func(e engine.LogEntry) error { all = append(all, e); return nil })
	for _, piece := range []string{`{"log":"ti`,
		`ck 1\n","stream":"stdout","time":"2026-11-23T04:40:01.483796065Z"}` + "\n",
		`{"log":"oh\n","stream":"stderr","time":"2026-11-23T04:40:02Z"}` + "\n"} {
		if err := emit(engine.LogEntry{Data: []byte(piece)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(all) != 2 || string(all[0].Data) != "tick 1\n" || all[0].Stream != "stdout" ||
		all[0].Time.Nanosecond() != 483796065 || all[1].Stream != "stderr" {
		t.Errorf("%v", all)
	}
}

// FuzzEntry checks that no log entry crashes its reader.
func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"log":"tick 1\n","stream":"stdout","time":"2026-11-23T04:40:01.483796065Z"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if entry, err := Entry(line); err == nil && entry.Stream != "stdout" && entry.Stream != "stderr" {
			t.Errorf("stream %q", entry.Stream)
		}
	})
}

// FuzzLabels checks that accepted labels contain no path of another container, and no additional line of a
// hosts file.
func FuzzLabels(f *testing.F) {
	for name, value := range ofRun() {
		if short, is := strings.CutPrefix(name, prefix); is {
			f.Add(short, value)
		}
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		labels := with(name, value)
		if len(LabelObstacles(at, labels, nil)) > 0 {
			return
		}
		if labels[labelState] != at.State() || filepath.Base(Name(labels)) != Name(labels) {
			t.Errorf("it is in %q, and called %q", labels[labelState], Name(labels))
		}
		hosts, err := extraHosts(labels[labelExtraHosts])
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range append(slices.Collect(maps.Keys(hosts)), labels[labelHostname],
			labels[labelDomain], Name(labels)) {
			if strings.ContainsAny(text, " \t\n\r#") {
				t.Errorf("name %q", text)
			}
		}
		if config, err := readLogConfig(at, labels[labelLogConfig]); err != nil ||
			config.Opts["log-path"] != "" {
			t.Errorf("log %v, %v", config, err)
		}
		if _, err := json.Marshal(labels); err != nil {
			t.Error(err)
		}
	})
}

// TestIsID checks that an ID must be complete: in some versions, nerdctl's hooks remove all rules that
// contain the ID.
func TestIsID(t *testing.T) {
	for id, want := range map[string]bool{strings.Repeat("0f", 32): true, "a": false,
		strings.Repeat("0F", 32): false, strings.Repeat("0", 65): false} {
		if IsID(id) != want {
			t.Errorf("%s: %t", id, !want)
		}
	}
}
