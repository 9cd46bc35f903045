package storm

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// asked is what a storm is to be like.
type asked struct {
	seed       uint64
	migrations int           // after so many it ends
	limit      time.Duration // or after so long
	act        int           // migrations after which the containers are replaced, and leaks are looked for
	long       bool          // with more containers
	climate    climate
	json       string // where its figures go; empty: nowhere
}

// The short form, which is part of all tests.
const (
	shortSeed       = 16
	shortMigrations = 1000
	shortLimit      = time.Minute
)

// actMigrations is how many migrations an act of a long storm has.
const actMigrations = 1000

// ask reads the environment; what is not said there is that of the short form, or has no limit.
func ask(t *testing.T) asked {
	t.Helper()
	a := asked{
		seed: shortSeed, migrations: shortMigrations, limit: shortLimit, act: actMigrations, climate: rough(),
		json: os.Getenv("STORM_JSON"),
	}
	if isLong() {
		a.long, a.seed, a.climate = true, uint64(rand.Uint32()), rougher()
		if os.Getenv("STORM_MIGRATIONS") != "" {
			a.climate = changing()
		}
		a.migrations, a.limit = 1<<31, 1<<20*time.Second
	}
	number := func(name string, into func(uint64)) {
		if text := os.Getenv(name); text != "" {
			value, err := strconv.ParseUint(text, 10, 32)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			into(value)
		}
	}
	number("STORM_SEED", func(value uint64) { a.seed = value })
	number("STORM_MIGRATIONS", func(value uint64) { a.migrations = int(value) })
	number("STORM_SECONDS", func(value uint64) { a.limit = time.Duration(value) * time.Second })
	return a
}

// isLong tells whether a storm is asked for that is not the short form.
func isLong() bool { return os.Getenv("STORM_MIGRATIONS") != "" || os.Getenv("STORM_SECONDS") != "" }

// nodesAsked is the number of nodes: STORM_NODES, from 2 to 5.
func nodesAsked() int {
	number, err := strconv.Atoi(os.Getenv("STORM_NODES"))
	if err != nil {
		return 3
	}
	return min(max(number, 2), 5)
}

// tally is what a storm has been.
type tally struct {
	seconds    float64
	migrations int
	results    map[migration.Result]int // at the source; of what had ended before its round was over
	moved      map[via]int              // of those, by engine
	faults     map[what]int
	looks      int               // of the monitor
	doubles    map[string]string // that it has seen, by container
	nowhere    time.Duration     // the longest
	nowhereOf  string
	double     int // that programs and their clients have told of
	lost       int
	leaks      []string
	problems   []string // what else must not be
}

func (t *tally) faultCount() (count int) {
	for _, times := range t.faults {
		count += times
	}
	return count
}

func (t *tally) ended(of *subject, how migration.Result) {
	if t.results == nil {
		t.results, t.moved = map[migration.Result]int{}, map[via]int{}
	}
	if t.results[how]++; how == migration.Moved {
		t.moved[of.engine]++
	}
}

// watched adds what a monitor has seen.
func (t *tally) watched(m *monitor) {
	if t.doubles == nil {
		t.doubles = map[string]string{}
	}
	maps.Copy(t.doubles, m.doubles())
	m.mu.Lock()
	t.looks += m.looks
	m.mu.Unlock()
	if nowhere, of := m.longest(); nowhere > t.nowhere {
		t.nowhere, t.nowhereOf = nowhere, of
	}
}

func (t *tally) count(kind what) {
	if t.faults == nil {
		t.faults = map[what]int{}
	}
	t.faults[kind]++
}

// tell prints the figures, leaves them in a file, and fails the test if they are not as they must be.
func (s *storm) tell(t *testing.T) {
	t.Helper()
	faults := s.tally.faultCount()
	table := []string{"| fault | times |", "|---|---|"}
	for kind, times := range s.tally.faults {
		table = append(table, fmt.Sprintf("| %s | %d |", kind, times))
	}
	slices.Sort(table[2:])
	double := max(s.tally.double, len(s.tally.doubles))
	t.Logf("seed %d: %d migrations (%v, moved %v) and %d faults in %.0f s, %d looks; "+
		"double %d, lost %d, leaks %d; nowhere for at most %.2f s after its fault was gone: %s\n%s",
		s.asked.seed, s.tally.migrations, s.tally.results, s.tally.moved, faults, s.tally.seconds,
		s.tally.looks, double, s.tally.lost, len(s.tally.leaks),
		s.tally.nowhere.Seconds(), s.tally.nowhereOf, strings.Join(table, "\n"))
	if double+s.tally.lost+len(s.tally.leaks)+len(s.tally.problems) > 0 {
		t.Errorf("STORM_SEED=%d: double %v, lost %d, leaks:\n%s\n%s",
			s.asked.seed, s.tally.doubles, s.tally.lost,
			strings.Join(s.tally.leaks, "\n"), strings.Join(s.tally.problems, "\n"))
	}
	if s.asked.json == "" {
		return
	}
	result, err := json.Marshal(map[string]any{
		"seed": s.asked.seed, "seconds": s.tally.seconds, "migrations": s.tally.migrations, "faults": faults,
		"double": double, "lost": s.tally.lost, "leaks": len(s.tally.leaks),
		"longest_nowhere_seconds": s.tally.nowhere.Seconds(),
	})
	if err == nil {
		err = os.WriteFile(s.asked.json, append(result, '\n'), 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

// saveLogs keeps the agents' logs in the directory STORM_LOGS if the storm has failed: they are gone with the lab.
func (s *storm) saveLogs(t *testing.T) {
	directory := os.Getenv("STORM_LOGS")
	if directory == "" || !t.Failed() {
		return
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Error(err)
	}
	for _, node := range world.nodes {
		log, err := os.ReadFile(world.lab.AgentLog(node))
		if err == nil {
			err = os.WriteFile(filepath.Join(directory, node+"-agent.log"), log, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Logf("the agents' logs are in %s", directory)
}
