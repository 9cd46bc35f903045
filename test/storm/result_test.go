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

// asked is the configuration of a storm.
type asked struct {
	seed       uint64
	migrations int           // it ends after this many
	limit      time.Duration // or after this time
	act        int           // migrations between two replacements of the containers and checks for leaks
	long       bool          // with more containers
	climate    climate
	json       string // file for its figures; empty: none
	resume     bool   // it continues the storm with these figures
}

// The short form, which is part of all tests.
const (
	shortSeed       = 16
	shortMigrations = 1000
	shortLimit      = time.Minute
)

// actMigrations is the number of migrations in an act of a long storm.
const actMigrations = 1000

// ask reads the environment; missing values are those of the short form, or unlimited.
func ask(t *testing.T) asked {
	t.Helper()
	a := asked{
		seed: shortSeed, migrations: shortMigrations, limit: shortLimit, act: actMigrations, climate: rough(),
		json: os.Getenv("STORM_JSON"), resume: os.Getenv("STORM_RESUME") != "",
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

// isLong reports whether a storm other than the short form is configured.
func isLong() bool { return os.Getenv("STORM_MIGRATIONS") != "" || os.Getenv("STORM_SECONDS") != "" }

// nodesAsked returns the number of nodes: STORM_NODES, from 2 to 5.
func nodesAsked() int {
	number, err := strconv.Atoi(os.Getenv("STORM_NODES"))
	if err != nil {
		return 3
	}
	return min(max(number, 2), 5)
}

// tally is the result of a storm.
type tally struct {
	seconds    float64
	migrations int
	results    map[migration.Result]int // at the source; of those that ended within their round
	moved      map[via]int              // of those, by engine
	faults     map[what]int
	looks      int               // of the monitor
	doubles    map[string]string // seen by the monitor, by container
	nowhere    time.Duration     // the longest
	nowhereOf  string
	double     int // reported by programs and their clients
	lost       int
	leaks      []string
	problems   []string // other errors
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

// watched adds a monitor's observations.
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

// tell prints the figures, writes them to a file, and fails the test if they are wrong.
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
	now := figures{
		Seed: s.asked.seed, Rounds: s.number, Pieces: s.before.Pieces + 1,
		Seconds: s.before.Seconds + s.tally.seconds, Migrations: s.before.Migrations + s.tally.migrations,
		Faults: s.before.Faults + faults, Double: s.before.Double + double,
		Lost:           s.before.Lost + s.tally.lost,
		Leaks:          s.before.Leaks + len(s.tally.leaks),
		LongestNowhere: max(s.before.LongestNowhere, s.tally.nowhere.Seconds()),
	}
	result, err := json.Marshal(now)
	if err == nil {
		err = os.WriteFile(s.asked.json, append(result, '\n'), 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

// figures are a storm's saved results.
type figures struct {
	Seed           uint64  `json:"seed"`
	Rounds         int     `json:"rounds"`
	Pieces         int     `json:"pieces"` // runs, each of which continued the previous one
	Seconds        float64 `json:"seconds"`
	Migrations     int     `json:"migrations"`
	Faults         int     `json:"faults"`
	Double         int     `json:"double"`
	Lost           int     `json:"lost"`
	Leaks          int     `json:"leaks"`
	LongestNowhere float64 `json:"longest_nowhere_seconds"`
}

// resume continues with the rounds that an earlier storm with the same plan has not reached.
func (s *storm) resume(t *testing.T) {
	t.Helper()
	if !s.asked.resume {
		return
	}
	data, err := os.ReadFile(s.asked.json)
	if err == nil {
		err = json.Unmarshal(data, &s.before)
	}
	if err != nil {
		t.Fatalf("STORM_RESUME: the storm before: %v", err)
	}
	s.asked.seed, s.number = s.before.Seed, s.before.Rounds
	s.asked.migrations -= s.before.Migrations
}

// saveLogs copies the agents' logs to the directory STORM_LOGS if the storm has failed: they disappear with
// the lab.
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

// TestResume: a storm continues with the round after the last one, and includes the earlier counts.
func TestResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "storm.json")
	first := &storm{asked: asked{seed: 7, migrations: 5000, json: path}, number: 12}
	first.tally = tally{migrations: 3000, faults: map[what]int{cancels: 4}, seconds: 5}
	first.tell(t)
	second := &storm{asked: asked{migrations: 5000, json: path, resume: true}}
	second.resume(t)
	if second.asked.seed != 7 || second.number != 12 || second.asked.migrations != 2000 {
		t.Errorf("the storm goes on with %+v, round %d", second.asked, second.number)
	}
	second.number, second.tally.migrations = 20, 2000
	second.tell(t)
	third := &storm{asked: asked{json: path, resume: true}}
	third.resume(t)
	want := figures{Seed: 7, Rounds: 20, Pieces: 2, Seconds: 5, Migrations: 5000, Faults: 4}
	if third.before != want {
		t.Errorf("the figures are %+v, want %+v", third.before, want)
	}
}
