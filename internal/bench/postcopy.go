package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

const suitePostCopy = "postcopy"

// wayModel is the container after which those of other ways are made. It is not moved.
const wayModel migration.Mode = "model"

// PostCopy measures the cost of post-copy: how long a container stands still, how long its program waits
// for pages, how well the link is used; beside CRIU's own lazy migration. When it returns, it has cleaned
// up the machine. If some ways failed, the result has the other measurements; the error lists Godwit's
// failures.
func PostCopy(ctx context.Context, config testbed.Config) (results.Result, error) {
	chosen, err := selectedFollowings(config)
	if err != nil {
		return results.Result{}, err
	}
	return postCopy(ctx, config, chosen)
}

// postCopy measures the selected workloads.
func postCopy(ctx context.Context, config testbed.Config, chosen []following) (results.Result, error) {
	return testbed.RunInTurns(ctx, config, suitePostCopy,
		func(ctx context.Context, s *testbed.Suite) (err error) {
			forbid, err := allowPipes()
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
	archive, err := buildImage(ctx, s, model)
	if err != nil {
		return err
	}
	first := newGodwitWay(s.Bed, wayModel, model, archive)
	if err := first.start(ctx); err != nil {
		return err
	}
	container, err := first.inspect(ctx)
	if err != nil {
		return err
	}
	bundle := newBundle(s.Bed, plug{name: "lazy", number: 4}, container)
	for _, f := range chosen {
		if err := followOne(ctx, s, f, archive, bundle); err != nil {
			return err
		}
	}
	_, err = s.Bed.Exec(ctx, first.at, testbed.Program, "rm", "--force", first.container())
	return err
}

// newFollower makes a way.
func newFollower(s *testbed.Suite, name string, w containerWorkload, archive string, model bundle) follower {
	if name == wayLazy {
		patience := peerPatience
		if s.Config.Quick {
			patience = quickPatience
		}
		return newLazyWay(s.Bed, w, model, patience)
	}
	for _, mode := range migration.Modes() {
		if g := newGodwitWay(s.Bed, mode, w, archive); g.name() == name {
			return followerOfGodwit{g}
		}
	}
	return nil
}

// followOne measures a workload in all ways. Each run has a container of its own.
func followOne(ctx context.Context, s *testbed.Suite, f following, archive string, model bundle) error {
	w := f.workload(s.Config.Quick)
	return s.TakeTurns(ctx, f.turns(), f.link, func(way string) ([]results.Measurement, error) {
		return followOnce(ctx, s, f, newFollower(s, way, w, archive, model), w)
	})
}

// followOnce moves a program once, while it works.
func followOnce(ctx context.Context, s *testbed.Suite, f following, way follower,
	w containerWorkload) (_ []results.Measurement, err error) {
	if err := s.SetLink(testbed.LinkFaster); err != nil {
		return nil, err
	}
	defer func() {
		stopErr := way.stop(context.WithoutCancel(ctx))
		if stopErr != nil && way.name() == wayLazy {
			s.Say("%s: %v", way.name(), stopErr) // the measurements remain valid
			stopErr = nil
		}
		err = errors.Join(err, stopErr)
	}()
	if err := way.start(ctx); err != nil {
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
	if !move.partly {
		move.came = float64(w.memory.Size)
	}
	measured := slices.Concat(move.measured, answered,
		[]results.Measurement{{metricProgram, float64(w.memory.Size)}})
	if f.access != "" || f.client {
		measured = append(measured, fromAccessed(seen, move.came)...)
	}
	if move.partly {
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
func moveServed(ctx context.Context, s *testbed.Suite, f following, way follower) (_ moved,
	_ []results.Measurement,
	err error) {
	if !f.client {
		result, err := way.move(ctx, func() {})
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
	if way.keepsConnections() {
		if err := begin(); err != nil {
			return moved{}, nil, err
		}
		if err := client.await(ctx, s.Began); err != nil {
			return moved{}, nil, err
		}
	}
	var failed error
	result, err := way.move(ctx, func() {
		if client == nil {
			failed = begin()
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return result, nil, err
	}
	if err := client.await(ctx, result.resumed); err != nil {
		return result, nil, err
	}
	answered, gap, _ := client.seen(result.resumed)
	measured := []results.Measurement{{metricAnswered, answered.Seconds()}}
	if way.keepsConnections() {
		measured = append(measured, results.Measurement{results.Gap, gap.Seconds()})
	}
	return result, measured, nil
}
