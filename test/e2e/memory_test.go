package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// memories returns programs that check all of their memory all the time while they use it like real
// programs.
func memories() map[string][]string {
	return map[string][]string{
		"one":       {"-mb", "64", "-threads", "1"},
		"threads":   {"-mb", "64", "-threads", "8"},
		"processes": {"-mb", "16", "-children", "20", "-zombie", "-chaos", "-deeds", "fork"},
		"mappings":  {"-mb", "32", "-chaos"},
		"huge":      {"-mb", "64", "-chaos", "-huge", "-deeds", "fork,give,free,protect"},
		"copied":    {"-mb", "64", "-children", "4", "-chaos", "-deeds", "fork,give"},
		"shared":    {"-mb", "32", "-children", "3", "-shared"},
		"growing":   {"-mb", "8", "-chaos", "-deeds", "heap,stack,grow"},
		"all":       {"-mb", "32", "-children", "2", "-shared", "-zombie", "-lock", "-huge", "-chaos"},
	}
}

// migrationsVariable is the total number of migrations in TestMemory; make soak sets it.
const migrationsVariable = "GODWIT_E2E_MIGRATIONS"

// TestMemory moves programs that check their memory, in all live modes, back and forth, one after the
// other. Every page is checked before each move and after it.
func TestMemory(t *testing.T) {
	t.Parallel()
	all := memories()
	each := 3
	if testing.Short() {
		each = 1
	}
	if text := os.Getenv(migrationsVariable); text != "" {
		wanted, err := strconv.Atoi(text)
		if err != nil || wanted < 1 {
			t.Fatalf("%s is %q, want a number of migrations", migrationsVariable, text)
		}
		each = (wanted + len(all) - 1) / len(all)
	}
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			soak(t, i, each,
				append([]string{"/bin/chaos", "-pause", "2ms"}, all[name]...))
		})
	}
}

// soak moves a program, with the modes in turn, beginning with mode first.
func soak(t *testing.T, first, migrations int, program []string) {
	c := run(t, nil, program...)
	var downtimes []float64
	live := []string{preCopy, postCopy, hybrid}
	for n := range migrations {
		c.looksAtAll()
		downtimes = append(downtimes, c.migrateBy(live[(first+n)%len(live)]).DowntimeSeconds)
		if t.Failed() {
			return
		}
	}
	pages := c.looksAtAll()
	slices.Sort(downtimes)
	t.Logf("%d migrations, pages checked since the last one at least %d, downtime median %.0f ms, longest "+
		"%.0f ms", migrations, pages,
		1000*downtimes[len(downtimes)/2], 1000*downtimes[len(downtimes)-1])
}

// round is the program's report after a check of all its pages.
type round struct {
	number          int
	bad             int64
	checked, others int64
}

// rounds parses the program's reports. A report of a wrong page fails the test, as does the program's end.
func (c *container) rounds() []round {
	c.t.Helper()
	out := c.logs()
	if text := out.stdout + out.stderr; strings.Contains(text, "BAD") ||
		strings.Contains(text, "goroutine ") {
		at := max(strings.Index(text, "BAD"), 0)
		c.t.Fatalf("on %s the program says %.3000s", c.node, text[at:])
	}
	var all []round
	for line := range strings.Lines(out.stdout) {
		var r round
		n, _ := fmt.Sscanf(line, "round %d bad %d checked %d of others %d", &r.number, &r.bad, &r.checked,
			&r.others)
		if n == 4 {
			all = append(all, r)
		}
	}
	return all
}

// looksAtAll waits until the program has checked all pages once more, from the first to the last, and
// returns how many it has checked meanwhile. Processes that share memory with it must have made progress,
// too.
func (c *container) looksAtAll() int64 {
	c.t.Helper()
	before := c.rounds()
	var now []round
	c.eventually("the program to look at all pages", func() bool {
		now = c.rounds()
		return len(now) >= len(before)+2
	})
	last, first := now[len(now)-1], round{}
	if len(before) > 0 {
		first = before[len(before)-1]
	}
	if last.bad > 0 {
		c.t.Fatalf("on %s it has found %d pages that are wrong", c.node, last.bad)
	}
	if first.others > 0 && last.others == first.others {
		c.eventually("those who share memory to go on", func() bool {
			now = c.rounds()
			return now[len(now)-1].others > last.others
		})
	}
	if i := c.inspect(); i.State != "running" {
		c.t.Fatalf("on %s it is %s", c.node, i.State)
	}
	return last.checked - first.checked
}
