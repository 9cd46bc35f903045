package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// How much is told.
const (
	slowPackages = 8
	slowTests    = 15
	testsInFull  = 20
)

// summary is what is told of a run at its end, what matters most last.
type summary struct {
	*record
	took    time.Duration
	log     string
	stopped error // why not all tests came to an end
	now     time.Time
}

func (s *summary) write(to io.Writer) {
	fmt.Fprintf(to, "\ntest: the slowest packages and tests:\n")
	slowest(to, s.order, slowPackages, func(t *test) bool { return t.name == "" })
	slowest(to, s.order, slowTests, func(t *test) bool { return t.name != "" && !strings.Contains(t.name, "/") })
	failures := s.failures()
	for i, t := range failures {
		if i == testsInFull {
			fmt.Fprintf(to, "\ntest: %d more failed; the log has what they said\n", len(failures)-i)
			break
		}
		fmt.Fprintf(to, "\n--- FAIL: %s\n", t.title())
		for _, line := range bounded(t.output) {
			fmt.Fprint(to, line)
		}
	}
	fmt.Fprintln(to)
	s.writeEnd(to, failures)
}

// writeEnd writes the last lines, of which each stands for itself.
func (s *summary) writeEnd(to io.Writer, failures []*test) {
	count := map[string]int{}
	for _, t := range s.order {
		if t.name == "" {
			count[t.result]++
		}
	}
	fmt.Fprintf(to, "test: %d packages passed, %d failed, %d without tests, in %.0f s (log: %s)\n",
		count["pass"], count["fail"], count["skip"], s.took.Seconds(), s.log)
	for _, t := range failures {
		fmt.Fprintf(to, "test:   --- FAIL: %s%s\n", t.title(), firstMessage(t.output))
	}
	if s.stopped != nil {
		fmt.Fprintf(to, "test:   stopped: %v\n", s.stopped)
		for _, t := range s.order {
			if !t.ended && !s.within(t) {
				fmt.Fprintf(to, "test:   was running: %s %s, for %.0f s\n", t.pkg, cmp.Or(t.name, "(no test)"), s.now.Sub(t.began).Seconds())
			}
		}
	}
	if s.stopped != nil || s.failed() {
		fmt.Fprintln(to, "test: FAILED")
		return
	}
	fmt.Fprintln(to, "test: all passed")
}

// within tells whether a test, or a package, has something below it that has not ended either.
func (s *summary) within(t *test) bool {
	return slices.ContainsFunc(s.order, func(of *test) bool {
		below := t.name == "" && of.name != "" || strings.HasPrefix(of.name, t.name+"/")
		return of.pkg == t.pkg && below && !of.ended
	})
}

func slowest(to io.Writer, all []*test, most int, of func(*test) bool) {
	var chosen []*test
	for _, t := range all {
		if of(t) && t.took >= time.Second {
			chosen = append(chosen, t)
		}
	}
	slices.SortFunc(chosen, func(a, b *test) int { return cmp.Compare(b.took, a.took) })
	for _, t := range chosen[:min(most, len(chosen))] {
		fmt.Fprintf(to, "test: %7.1f s  %s %s\n", t.took.Seconds(), t.pkg, t.name)
	}
}

// failures are the tests that failed, but those that have nothing to say themselves, because only a subtest or a test of the package
// failed.
func (s *summary) failures() (failures []*test) {
	for _, t := range s.order {
		below := func(of *test) bool {
			return of.pkg == t.pkg && of != t && of.result == "fail" && (t.name == "" || strings.HasPrefix(of.name, t.name+"/"))
		}
		says := t.name != "" && len(bounded(t.output)) > 0
		if t.result == "fail" && (says || !slices.ContainsFunc(s.order, below)) {
			failures = append(failures, t)
		}
	}
	return failures
}

func (t *test) title() string {
	return fmt.Sprintf("%s (%.2fs) %s", cmp.Or(t.name, "(the package)"), t.took.Seconds(), t.pkg)
}
