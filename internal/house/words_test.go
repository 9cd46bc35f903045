package house

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// words are Godwit's former words for things that have a common name. Each has its replacement.
var words = map[string]string{
	`[Dd]oors?\b|\bdoor[A-Z]`:              "runtime shim (godwit-runc), or ingress mark (of a connection)",
	`(?i)gatekeeper`:                       "server of the restore proxy",
	`[Ss]tand-in\b|[Ss]tandIn([^g]|$)`:     "CRIU wrapper",
	`(?i)forerunner`:                       "PID placeholder",
	`(?i)\bmuzzle`:                         "block the namespace",
	`(?i)footprint`:                        "residual memory copy",
	`(?i)\bparked\b`:                       "idle copy",
	`(?i)\bmeddl`:                          "interfere",
	`(?i)newcomer|\bon trial\b`:            "candidate, probation",
	`(?i)\bstray|\btidy|\btidies`:          "orphan, garbage-collect",
	`KeepFlows|KeepVisit`:                  "save conntrack entries",
	`\b[Ll]ate ?[Pp]ages?\b|\bLatePages`:   "remote pages",
	`\bthe drain of (the|its|late) memory`: "post-copy push",
}

// persisted are words that stay where older releases, their files and their users know them: names of
// files, sockets, chains, commands, options, fields of messages and of JSON.
var persisted = regexp.MustCompile(`"door"|/run/godwit/door|"(bridged-)?doors"|"restore-gatekeeper"|` +
	`GODWIT_(GATE|STAND)|"forerunner"|forerunner\.sock|proxy: forerunner|The word forerunner|` +
	`-footprint|footprint-limit|"footprint"|` + "`footprint`" +
	`|\(footprint\)|[a-z]Footprint|\.Footprint|Footprint +\*?[a-z]|` +
	`"parked"|` + "`parked`" + `|late_pages|"LatePages|late\.sock`)

// notOurs are places where a word has another, common meaning.
var notOurs = map[string]string{
	"internal/files/":         "parked", // files that wait for their new name
	"docs/internals/files.md": "parked",
}

// TestWords checks that code, comments, messages and documentation use the field's words.
func TestWords(t *testing.T) {
	compiled := map[*regexp.Regexp]string{}
	for pattern, better := range words {
		compiled[regexp.MustCompile(pattern)] = better
	}
	for _, path := range append(goFiles(t), pages(t)...) {
		name := strings.TrimPrefix(filepath.ToSlash(path), "../../")
		if name == "CHANGELOG.md" || strings.HasPrefix(name, "internal/house/") {
			continue
		}
		for number, line := range strings.Split(readPage(t, path), "\n") {
			if persisted.MatchString(line) {
				continue
			}
			for pattern, better := range compiled {
				found := pattern.FindString(line)
				if found != "" && !otherMeaning(name, found) {
					t.Errorf("%s:%d: %q: say %s", name, number+1, found, better)
				}
			}
		}
	}
}

func otherMeaning(name, word string) bool {
	for directory, other := range notOurs {
		if strings.HasPrefix(name, directory) && strings.EqualFold(word, other) {
			return true
		}
	}
	return false
}

// goFiles returns the module's Go files, with tests and without generated code, relative to this directory.
func goFiles(t *testing.T) (all []string) {
	t.Helper()
	for _, p := range packages(t) {
		found, err := filepath.Glob(filepath.Join("../..", p.name(), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, slices.DeleteFunc(found,
			func(path string) bool { return strings.HasSuffix(path, ".pb.go") })...)
	}
	return all
}
