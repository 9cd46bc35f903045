package postcopy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

// Name is the name of the benchmark.
const Name = "postcopy"

// Run measures the cost of post-copy: how long a container stands still, how long its program waits
// for pages, how well the link is used; beside CRIU's own lazy migration. When it returns, it has cleaned
// up the machine. If some ways failed, the result has the other measurements; the error lists Godwit's
// failures.
func Run(ctx context.Context, config testbed.Config) (results.Result, error) {
	chosen, err := selectedFollowings(config)
	if err != nil {
		return results.Result{}, err
	}
	return postCopy(ctx, config, chosen)
}

// postCopy measures the selected workloads.
func postCopy(ctx context.Context, config testbed.Config, chosen []following) (results.Result, error) {
	return testbed.RunInTurns(ctx, config, Name,
		func(ctx context.Context, s *testbed.Suite) (err error) {
			forbid, err := moves.AllowPipes()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, forbid()) }()
			return follow(ctx, s, chosen)
		}, judgeFollowing)
}

// follow measures the selected workloads.
func follow(ctx context.Context, s *testbed.Suite, chosen []following) (err error) {
	var daemons testbed.RsyncDaemons
	defer func() { err = errors.Join(err, daemons.Stop()) }()
	if err := daemons.Start(ctx, s.Bed); err != nil {
		return err
	}
	model := following{name: "model", memory: pages.Config{Size: results.Mebi}}.workload(false)
	archive, err := moves.BuildImage(ctx, s, model)
	if err != nil {
		return err
	}
	first := moves.NewGodwit(s.Bed, moves.WayModel, model, archive)
	if err := first.Start(ctx); err != nil {
		return err
	}
	container, err := first.Inspect(ctx)
	if err != nil {
		return err
	}
	bundle := moves.NewBundle(s.Bed, moves.Plug{Name: "lazy", Number: 4}, container)
	for _, f := range chosen {
		if err := followOne(ctx, s, f, archive, bundle); err != nil {
			return err
		}
	}
	_, err = s.Bed.Exec(ctx, first.At, testbed.Program, "rm", "--force", first.Container())
	return err
}

// newFollower makes a way.
func newFollower(s *testbed.Suite, name string, w moves.Workload, archive string,
	model moves.Bundle) follower {
	if name == moves.WayLazy {
		patience := moves.PeerPatience
		if s.Config.Quick {
			patience = moves.QuickPatience
		}
		return moves.NewLazy(s.Bed, w, model, patience)
	}
	for _, mode := range migration.Modes() {
		if g := moves.NewGodwit(s.Bed, mode, w, archive); g.Name() == name {
			return followerOfGodwit{g}
		}
	}
	return nil
}

// followOne measures a workload in all ways. Each run has a container of its own.
func followOne(ctx context.Context, s *testbed.Suite, f following, archive string, model moves.Bundle) error {
	w := f.workload(s.Config.Quick)
	return s.TakeTurns(ctx, f.turns(), f.link, func(way string) ([]results.Measurement, error) {
		return followOnce(ctx, s, f, newFollower(s, way, w, archive, model), w)
	})
}

// followOnce moves a program once, while it works.
func followOnce(ctx context.Context, s *testbed.Suite, f following, way follower,
	w moves.Workload) (_ []results.Measurement, err error) {
	if err := s.SetLink(testbed.LinkFaster); err != nil {
		return nil, err
	}
	defer func() {
		stopErr := way.Stop(context.WithoutCancel(ctx))
		if stopErr != nil && way.Name() == moves.WayLazy {
			s.Say("%s: %v", way.Name(), stopErr) // the measurements remain valid
			stopErr = nil
		}
		err = errors.Join(err, stopErr)
	}()
	if err := way.Start(ctx); err != nil {
		return nil, err
	}
	if err := s.SetLink(f.link); err != nil {
		return nil, err
	}
	var seen pages.Accessed
	if f.access != "" {
		if err := ask(ctx, way, f.access, &seen); err != nil {
			return nil, err
		}
	}
	move, answered, err := moveServed(ctx, s, f, way)
	if err != nil {
		return nil, err
	}
	if err := ask(ctx, way, pages.AskRest, &seen); err != nil {
		return nil, err
	}
	if seen.Bad > 0 {
		return nil, fmt.Errorf("the memory was not what it had to be: %d pages", seen.Bad)
	}
	if !move.Partly {
		move.Came = float64(w.Memory.Size)
	}
	measured := slices.Concat(move.Measured, answered,
		[]results.Measurement{{metricProgram, float64(w.Memory.Size)}})
	if f.access != "" || f.client {
		measured = append(measured, fromAccessed(seen, move.Came)...)
	}
	if move.Partly {
		return measured, nil // checking all memory would take too long
	}
	return measured, verifyAsked(ctx, way)
}

// verifyAsked makes the program check all of its memory.
func verifyAsked(ctx context.Context, way follower) error {
	var result pages.Result
	if err := ask(ctx, way, pages.AskCheck, &result); err != nil {
		return err
	}
	if result.Bad > 0 || result.Checked < result.Pages {
		return fmt.Errorf("the memory was not what it had to be: %+v", result)
	}
	return nil
}

// moveServed moves a program that may have a client.
func moveServed(ctx context.Context, s *testbed.Suite, f following, way follower) (_ moves.Moved,
	_ []results.Measurement,
	err error) {
	if !f.client {
		result, err := way.Move(ctx, func() {})
		return result, nil, err
	}
	var client *service
	defer func() {
		if client != nil {
			err = errors.Join(err, client.close())
		}
	}()
	begin := func() error {
		client, err = startService(ctx, way)
		return err
	}
	if way.KeepsConnections() {
		if err := begin(); err != nil {
			return moves.Moved{}, nil, err
		}
		if err := client.await(ctx, s.Began); err != nil {
			return moves.Moved{}, nil, err
		}
	}
	var failed error
	result, err := way.Move(ctx, func() {
		if client == nil {
			failed = begin()
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return result, nil, err
	}
	if err := client.await(ctx, result.Resumed); err != nil {
		return result, nil, err
	}
	answered, gap, _ := client.seen(result.Resumed)
	measured := []results.Measurement{{metricAnswered, answered.Seconds()}}
	if way.KeepsConnections() {
		measured = append(measured, results.Measurement{results.Gap, gap.Seconds()})
	}
	return result, measured, nil
}
