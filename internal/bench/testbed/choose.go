package testbed

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// NamesOf lists names, each once: a workload may occur several times, with different links.
func NamesOf[T any](all []T, title func(T) string) []string {
	var names []string
	for _, one := range all {
		if name := title(one); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Itself is the title of a name.
func Itself(name string) string { return name }

// Choose selects the named elements of all, in their own order; all if none is named. A name may be
// shortened.
func Choose[T any](kind string, all []T, title func(T) string, named []string) ([]T, error) {
	if len(named) == 0 {
		return all, nil
	}
	for _, name := range named {
		if name == "" || !slices.ContainsFunc(all,
			func(one T) bool { return strings.HasPrefix(title(one), name) }) {
			return nil, fmt.Errorf("no such %s: %q; there are %s", kind,
				name, strings.Join(NamesOf(all, title), ", "))
		}
	}
	return slices.DeleteFunc(all, func(one T) bool {
		return !slices.ContainsFunc(named,
			func(name string) bool { return strings.HasPrefix(title(one), name) })
	}), nil
}

// Turns describes how ways take turns at a workload.
type Turns struct {
	Title string
	Ways  *[]string
	Runs  *int // of each way
	Quick int  // in a quick run; 0: none
}

// SelectTurns selects workloads for a configuration, with its ways and numbers of runs.
func SelectTurns[T any](c Config, all []T, ways []string, of func(*T) Turns) ([]T, error) {
	if c.Runs < 0 {
		return nil, fmt.Errorf("%d runs: must not be negative", c.Runs)
	}
	chosen, err := Choose("workload", all, func(one T) string { return of(&one).Title }, c.Workloads)
	if err != nil {
		return nil, err
	}
	if _, err := Choose("way", ways, Itself, c.Ways); err != nil {
		return nil, err
	}
	selected := []T{}
	for _, one := range chosen {
		t := of(&one)
		// A workload may lack some of the selected ways.
		*t.Ways = slices.DeleteFunc(slices.Clone(*t.Ways), func(way string) bool {
			return len(c.Ways) > 0 &&
				!slices.ContainsFunc(c.Ways, func(asked string) bool { return strings.HasPrefix(way, asked) })
		})
		if c.Quick {
			*t.Runs = t.Quick
		}
		if c.Runs > 0 && *t.Runs > 0 {
			*t.Runs = c.Runs
		}
		if *t.Runs > 0 && len(*t.Ways) > 0 {
			selected = append(selected, one)
		}
	}
	if len(selected) == 0 {
		return nil, errors.New("nothing to measure: these workloads are not moved in these ways, or not " +
			"in a quick run")
	}
	return selected, nil
}

// IsGodwit reports whether a way is one of Godwit's.
func IsGodwit(way string) bool { return strings.HasPrefix(way, "godwit") }
