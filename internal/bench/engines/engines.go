package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/migration"
)

// Name is the name of the benchmark.
const Name = "engines"

// The ways of the suite engines. Godwit's all use mode pre-copy.
const (
	wayEmbedded      = "godwit, embedded"
	wayByDocker      = "godwit, docker"
	wayByPodman      = "godwit, podman"
	wayByContainerd  = "godwit, containerd"
	wayByLXC         = "godwit, lxc"
	wayDockerOwn     = "docker checkpoint"
	wayPodmanOwn     = "podman checkpoint"
	wayContainerdOwn = "ctr checkpoint"
	wayLXCOwn        = "lxc-checkpoint"
)

// enginePairs returns Godwit's way and the engine's own, for each engine.
func enginePairs() [][2]string {
	return [][2]string{
		{wayByDocker, wayDockerOwn}, {wayByPodman, wayPodmanOwn}, {wayByContainerd, wayContainerdOwn},
		{wayByLXC, wayLXCOwn},
	}
}

// Ways lists the ways in which the suite engines moves containers, in the order of their turns.
func Ways() []string {
	ways := []string{wayEmbedded}
	for _, pair := range enginePairs() {
		ways = append(ways, pair[0], pair[1])
	}
	return ways
}

// metricCreate is the time that the target's engine needs to make the container, before the freeze.
const metricCreate = "create_seconds"

// engined is a workload that several engines run.
type engined struct {
	moves.Workload
	ways        []string
	runs, quick int // of each way; there and back are two
}

// engineds returns the workloads of the suite engines.
func engineds() []engined {
	tiny := moves.Workload{Name: moves.WorkloadTiny, Image: "busybox",
		Args: []string{"/usr/bin/sleep", "1000000"}}
	// as in the image: LXC does not read it there
	redis := moves.Workload{Name: moves.WorkloadRedis, Image: "redis", Port: moves.RedisPort, Args: []string{
		"/usr/bin/redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--appendonly",
		"no",
	}}
	return []engined{{tiny, Ways(), 14, 2}, {redis, Ways(), 8, 2}}
}

// Names lists the workloads of the suite engines.
func Names() []string {
	return testbed.NamesOf(engineds(), func(e engined) string { return e.Name })
}

// Run measures moves of other engines' containers, beside Godwit's own, and each engine's own way. When
// it returns, it has cleaned up the machine. If some ways failed, the result has the other measurements;
// the error lists Godwit's failures.
func Run(ctx context.Context, config testbed.Config) (results.Result, error) {
	chosen, err := testbed.SelectTurns(config, engineds(), Ways(),
		func(e *engined) testbed.Turns {
			return testbed.Turns{Title: e.Name, Ways: &e.ways, Runs: &e.runs, Quick: e.quick}
		})
	if err != nil {
		return results.Result{}, err
	}
	return testbed.RunInTurns(ctx, config, Name,
		func(ctx context.Context, s *testbed.Suite) error { return byEngines(ctx, s, chosen) }, judgeEngines)
}

// byEngines measures the selected workloads.
func byEngines(ctx context.Context, s *testbed.Suite, chosen []engined) (err error) {
	var daemons testbed.RsyncDaemons
	defer func() { err = errors.Join(err, daemons.Stop()) }()
	if err := daemons.Start(ctx, s.Bed); err != nil {
		return err
	}
	for _, one := range outsideEngines(s) {
		used := func(e engined) bool {
			return slices.ContainsFunc(e.ways, func(way string) bool { return engineOf(way) == one.name() })
		}
		if !slices.ContainsFunc(chosen, used) {
			continue
		}
		s.Say("%s is made ready", one.name())
		if err := errors.Join(one.bringUp(ctx, testbed.Nodes[0]),
			one.bringUp(ctx, testbed.Nodes[1])); err != nil {
			return err
		}
	}
	for _, e := range chosen {
		if err := byEnginesOne(ctx, s, e); err != nil {
			return err
		}
	}
	return nil
}

func outsideEngines(s *testbed.Suite) []outsideEngine {
	return []outsideEngine{docker{byCommand{s.Bed, "docker"}}, podman{byCommand{s.Bed, "podman"}},
		containerd{s.Bed}, lxc{s.Bed}}
}

// engineOf returns the engine whose containers a way moves; empty: Godwit's own.
func engineOf(way string) string {
	switch way {
	case wayByDocker, wayDockerOwn:
		return "docker"
	case wayByPodman, wayPodmanOwn:
		return "podman"
	case wayByContainerd, wayContainerdOwn:
		return "containerd"
	case wayByLXC, wayLXCOwn:
		return "lxc"
	}
	return ""
}

// byEnginesOne moves a workload in all ways, each container there and back.
func byEnginesOne(ctx context.Context, s *testbed.Suite, e engined) (err error) {
	archive, err := moves.BuildImage(ctx, s, e.Workload)
	if err != nil {
		return err
	}
	if err := s.SetLink(testbed.LinkFast); err != nil {
		return err
	}
	started := map[string]moves.Way{}
	defer func() {
		for name, one := range started {
			if stopErr := one.Stop(context.WithoutCancel(ctx)); stopErr != nil && testbed.IsGodwit(name) {
				err = errors.Join(err, fmt.Errorf("%s: %w", name, stopErr))
			}
		}
	}()
	return s.TakeTurns(ctx, testbed.Turns{Title: e.Name, Ways: &e.ways, Runs: &e.runs, Quick: e.quick},
		testbed.LinkFast,
		func(name string) ([]results.Measurement, error) {
			one := started[name]
			if one == nil {
				one = newEngineWay(s, name, e.Workload, archive)
				started[name] = one
				if err := one.Start(ctx); err != nil {
					return nil, err
				}
			}
			return one.Move(ctx)
		})
}

// newEngineWay makes a way.
func newEngineWay(s *testbed.Suite, name string, w moves.Workload, archive string) moves.Way {
	of := engineOf(name)
	if of == "" {
		return moves.NewGodwit(s.Bed, migration.PreCopy, w, archive)
	}
	engines := outsideEngines(s)
	engine := engines[slices.IndexFunc(engines, func(e outsideEngine) bool { return e.name() == of })]
	container := outside{name: "bench-" + strings.NewReplacer(", ", "-", " ", "-").Replace(name),
		args: w.Args, port: w.Port}
	one := engineWay{bed: s.Bed, engine: engine, title: name, container: container, archive: archive,
		at: testbed.Nodes[0]}
	if testbed.IsGodwit(name) {
		one.container.connected = engine.connects()
		return &movedWay{engineWay: one}
	}
	return &checkpointWay{one}
}

// WriteRows prints a table for each workload.
func WriteRows(r results.Result, w io.Writer) {
	r.WriteWays(w, results.WayTable{
		Columns: []results.Column{
			{"freeze", results.Downtime}, {"client waited", results.Gap}, {"in all", results.Total},
			{"create, before", metricCreate}, {"sent", results.Sent},
			{"checkpoint", results.Checkpoint}, {"copy", results.Copy}, {"restore", results.Restore},
		},
		Ways: Ways(),
	})
}

const (
	engineSlack = 0.080 // seconds: how much longer the freeze of another engine's container may be
	ownPart     = 0.25  // of the engine's own way
)

// judgeEngines compares the measurements with the requirements.
func judgeEngines(rows []results.Row) []results.Asked {
	m := results.Medians(rows)
	var asked []results.Asked
	for _, workload := range Names() {
		for _, way := range Ways() {
			asked = append(asked,
				results.AtMost(fmt.Sprintf("%s, %s: client's longest gap beyond the downtime at "+
					"most 1 RTT + %.0f ms", way, workload, results.GapSlack*1e3),
					m.Of(workload, testbed.LinkFast, way, results.Beyond),
					testbed.RTTOf(testbed.LinkFast)+results.GapSlack))
		}
		for _, ways := range enginePairs() {
			freeze := m.Downtime(workload, testbed.LinkFast, ways[0])
			asked = append(asked,
				results.AtMost(fmt.Sprintf("%s, %s: freeze at most the embedded engine's + %.0f ms", ways[0],
					workload, engineSlack*1e3),
					freeze, m.Downtime(workload, testbed.LinkFast, wayEmbedded)+engineSlack),
				results.AtMost(
					fmt.Sprintf("%s, %s: freeze at most %.2f x %s", ways[0], workload, ownPart, ways[1]),
					freeze, ownPart*m.Downtime(workload, testbed.LinkFast, ways[1])))
		}
	}
	return slices.DeleteFunc(asked,
		func(a results.Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}
