package zdtm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
)

// outcome is the result of a program moved in one way.
type outcome string

const (
	passed     outcome = "passed"
	failed     outcome = "failed"      // the program reports a changed state
	refused    outcome = "refused"     // by name, before anything moved
	rolledBack outcome = "rolled_back" // it continues at the source
	lost       outcome = "lost"        // it runs nowhere
	unfit      outcome = "unfit"       // the program does not start in such a container; not counted
)

// way is how programs are moved: plain runc, or a mode.
type way string

const (
	runc     way = "runc"
	cold     way = "cold"
	preCopy  way = "pre-copy"
	postCopy way = "post-copy"
	hybrid   way = "hybrid"
)

func allWays() []way { return []way{runc, cold, preCopy, postCopy, hybrid} }

// one is the result of one program in one way.
type one struct {
	Name   string  `json:"name"`
	Way    way     `json:"way"`
	Result outcome `json:"result"`
	Why    string  `json:"why,omitempty"`
}

// results are the results of all programs and ways, which are saved to a file after each.
type results struct {
	mutex sync.Mutex
	path  string
	cases []one
}

// document is the format of the file.
type document struct {
	Ways  map[way]map[outcome]int `json:"ways"`
	Worse []string                `json:"worse"`
	Cases []one                   `json:"cases"`
}

// readResults reads the results of an earlier run, if this run resumes it.
func readResults(path string, resume bool) (*results, error) {
	r := &results{path: path}
	if !resume {
		return r, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	var before document
	if err == nil {
		err = json.Unmarshal(data, &before)
	}
	r.cases = before.Cases
	return r, err
}

// of returns the results of a program, by way.
func (r *results) of(name string) map[way]one {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	all := map[way]one{}
	for _, c := range r.cases {
		if c.Name == name {
			all[c.Way] = c
		}
	}
	return all
}

// add adds outcomes and writes the file.
func (r *results) add(found ...one) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.cases = append(r.cases, found...)
	if r.path == "" {
		return nil
	}
	slices.SortFunc(r.cases,
		func(a, b one) int { return strings.Compare(a.Name+" "+string(a.Way), b.Name+" "+string(b.Way)) })
	data, err := json.MarshalIndent(summarise(r.cases), "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(r.path+".new", r.path)
}

// summarise counts, and finds results worse than plain runc's: programs that pass there, and neither pass
// here nor are refused.
func summarise(cases []one) document {
	d := document{Ways: map[way]map[outcome]int{}, Worse: []string{}, Cases: cases}
	right := map[string]bool{}
	for _, c := range cases {
		right[c.Name] = right[c.Name] || c.Way == runc && c.Result == passed
		if c.Result == unfit {
			continue
		}
		if d.Ways[c.Way] == nil {
			d.Ways[c.Way] = map[outcome]int{passed: 0, failed: 0, refused: 0, rolledBack: 0, lost: 0}
		}
		d.Ways[c.Way][c.Result]++
	}
	for _, c := range cases {
		if right[c.Name] && c.Way != runc && isWorse(c.Result) {
			d.Worse = append(d.Worse, fmt.Sprintf("%s (%s, %s)", c.Name, c.Way, c.Result))
		}
	}
	return d
}

func isWorse(o outcome) bool { return o == failed || o == rolledBack || o == lost }

// table returns the table for the documentation.
func table(d document) string {
	var b strings.Builder
	b.WriteString("| | right after the move | wrong after the move | refused | goes on at the source | " +
		"lost |\n|---|---|---|---|---|---|\n")
	for _, w := range allWays() {
		if n := d.Ways[w]; n != nil {
			fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d |\n", w, n[passed], n[failed], n[refused],
				n[rolledBack], n[lost])
		}
	}
	return b.String()
}
