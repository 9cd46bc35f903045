package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// messagesFile receives the list of messages, for people who review them: make messages.
const messagesFile = "../../build/messages.txt"

// sentence matches text for people: three words in a row.
var sentence = regexp.MustCompile(`[a-zA-Z]+,? [a-zA-Z%][a-zA-Z]*,? [a-zA-Z%]`)

// translated are phrases that a native engineer does not write, with what to write instead (HOUSE.md, Prose).
var translated = map[string]string{
	`\bis no more\b`:                           "is gone, no longer exists",
	`\bis not to be had\b`:                     "cannot be met, is not available",
	`\bwhat is not known\b`:                    "unknown",
	`\bhas it not\b`:                           "does not have it",
	`\bof nobody knows\b`:                      "unknown",
	`\bfor ever\b`:                             "forever, without end",
	`\bgives up a container\b`:                 "stops waiting for a container",
	`\bnot to be had\b`:                        "cannot be met, is not available",
	`\bis none of\b`:                           "is not one of, is not valid",
	`\bare no more\b`:                          "are gone, no longer exist",
	`\bdoes no more\b`:                         "no longer does",
	`\bnobody knows\b`:                         "it is unknown",
	`\b[Ss]omebody else\b`:                     "another program",
	`\bhas to do with\b`:                       "takes part in, names",
	`\bstands? against\b`:                      "delays, prevents; refused because",
	`\bwhat is left takes\b`:                   "the rest takes",
	`\bmakes of it\b`:                          "its effect, its meaning",
	`\bput back or copied\b`:                   "restored or copied",
	`\bwithout a word\b`:                       "without a report",
	`\bof the known form\b`:                    "an unknown format",
	`\bis no (file|directory|name|image|id)\b`: "is not a",
	`\bare not those of\b`:                     "do not match",
}

// message is a text that a user can see, with its location.
type message struct{ text, at string }

// TestMessages lists all texts for people in the programs, and checks that they are plain English.
func TestMessages(t *testing.T) {
	all := messages(t)
	var lines strings.Builder
	for _, m := range all {
		fmt.Fprintf(&lines, "%s\t%s\n", m.at, strconv.Quote(m.text))
	}
	if err := os.MkdirAll(filepath.Dir(messagesFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(messagesFile, []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d messages: %s", len(all), messagesFile)
	for pattern, better := range translated {
		is := regexp.MustCompile(pattern)
		for _, m := range all {
			if is.MatchString(m.text) {
				t.Errorf("%s: %q: say %s", m.at, m.text, better)
			}
		}
	}
}

// messages returns the texts for people in the module's code, by file.
func messages(t *testing.T) (all []message) {
	t.Helper()
	set := token.NewFileSet()
	for _, p := range packages(t) {
		if strings.HasPrefix(p.name(), "test/") {
			continue
		}
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.ParseComments|
				parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			if ast.IsGenerated(file) {
				continue
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if _, tagged := n.(*ast.Field); tagged {
					return false // its tag is no text, and a function's parameters have none
				}
				literal, is := n.(*ast.BasicLit)
				if !is || literal.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(literal.Value)
				if err == nil && sentence.MatchString(text) {
					all = append(all,
						message{text,
							fmt.Sprintf("%s/%s:%d", p.name(), name, set.Position(literal.Pos()).Line)})
				}
				return true
			})
		}
	}
	slices.SortStableFunc(all, func(a, b message) int { return strings.Compare(a.at, b.at) })
	return all
}
