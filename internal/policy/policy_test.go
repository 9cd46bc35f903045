package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/policy"
)

func modes() []string { return []string{"cold", "pre-copy", "restart"} }

func TestParseRefuses(t *testing.T) {
	for content, want := range map[string]string{
		`{"accept_form": ["a"]}`:              "unknown field",
		`{"accept_from": "a"}`:                "cannot unmarshal",
		`{"accept_from": [""]}`:               "empty entry",
		`{"host_directories": ["srv"]}`:       "absolute path",
		`{"host_directories": ["/srv/../e"]}`: "absolute path",
		`{"modes": ["fast"]}`:                 "choose from cold",
		`{"max_memory_bytes": -1}`:            "negative",
		`{} {}`:                               "after the end",
		``:                                    "EOF",
		strings.Repeat(" ", 70000):            "bytes",
	} {
		if _, err := policy.Parse([]byte(content), modes()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v, want %q", content, err, want)
		}
	}
}

func TestDecisions(t *testing.T) {
	one := policy.Container{
		Node: "b", Engine: "docker", Mode: "cold", HostDirectories: []string{"/srv/web"}, MemoryBytes: 1000,
		FilesBytes: 1000,
	}
	for content, keys := range map[string]struct{ arriving, leaving []string }{
		`{}`: {},
		`{"accept_from": ["b"], "send_to": ["b"], "engines": ["docker"], "modes": ["cold"], "host_directories": ["/srv"]}`: {},
		`{"accept_from": ["c"]}`:            {arriving: []string{"accept_from"}},
		`{"accept_from": []}`:               {arriving: []string{"accept_from"}},
		`{"send_to": ["c"]}`:                {leaving: []string{"send_to"}},
		`{"engines": ["godwit"]}`:           {[]string{"engines"}, []string{"engines"}},
		`{"modes": ["pre-copy"]}`:           {[]string{"modes"}, []string{"modes"}},
		`{"host_directories": []}`:          {arriving: []string{"host_directories"}},
		`{"host_directories": ["/srv/we"]}`: {arriving: []string{"host_directories"}},
		`{"max_memory_bytes": 999}`:         {arriving: []string{"max_memory_bytes"}},
		`{"max_files_bytes": 999}`:          {arriving: []string{"max_files_bytes"}},
		`{"max_files_bytes": 1000}`:         {},
	} {
		p, err := policy.Parse([]byte(content), modes())
		if err != nil {
			t.Fatalf("%s: %v", content, err)
		}
		if got := named(p.Arriving(one)); !slices.Equal(got, keys.arriving) {
			t.Errorf("%s: arriving refused by %v, want %v", content, got, keys.arriving)
		}
		if got := named(p.Leaving(one)); !slices.Equal(got, keys.leaving) {
			t.Errorf("%s: leaving refused by %v, want %v", content, got, keys.leaving)
		}
	}
}

func named(refusals []policy.Refusal) (keys []string) {
	for _, r := range refusals {
		keys = append(keys, r.Key)
	}
	return keys
}

// FuzzParse: whatever is parsed can be used and described.
func FuzzParse(f *testing.F) {
	f.Add(
		[]byte(
			`{"accept_from": ["a"], "host_directories": ["/srv"], "modes": ["cold"], "max_memory_bytes": 1}`))
	f.Add([]byte(`{"engines": []}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(_ *testing.T, content []byte) {
		p, err := policy.Parse(content, modes())
		if err != nil {
			return
		}
		p.Describe()
		p.Arriving(policy.Container{Node: "b", HostDirectories: []string{"/"}})
		p.Leaving(policy.Container{Node: "b"})
	})
}
