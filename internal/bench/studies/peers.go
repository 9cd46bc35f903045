package studies

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/engine"
)

// tryPeers measures the ways other than Godwit's. Their containers are made after one of Godwit's that is
// not moved.
func (s *suite) tryPeers(ctx context.Context, t trial, archive string, ways []string) (err error) {
	if err := s.SetLink(testbed.LinkFaster); err != nil {
		return err
	}
	w := moves.Workload{Image: t.app.Image, Args: t.app.Args}
	model := moves.NewGodwit(s.Bed, moves.WayModel, w, archive)
	for _, node := range testbed.Nodes {
		if _, err := s.Bed.Exec(ctx, node, testbed.Program, "image", "load", archive); err != nil {
			return err
		}
	}
	if err := model.Run(ctx, t.app.RunFlags()...); err != nil {
		return err
	}
	defer func() {
		_, rmErr := s.Bed.Exec(context.WithoutCancel(ctx), model.At, testbed.Program, "rm", "--force",
			model.Container())
		err = errors.Join(err, rmErr, services.RemoveVolume(s.Bed, model.At, services.Volume))
	}()
	container, err := model.Inspect(ctx)
	if err != nil {
		return err
	}
	for _, way := range ways {
		var all []*results.Series
		for _, link := range t.links {
			all = append(all, s.newTrialSeries(t, link, s.lacking(t, []string{link}, []string{way}))...)
		}
		err := s.tryPeer(ctx, t, s.newMover(way, &t.app, w, archive, container), all)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			for _, one := range all {
				if one.Runs < t.runs && one.Note == "" {
					s.GiveUp(one, err)
				}
			}
		}
	}
	return nil
}

// mover is a way to move a service, with the information that a client needs.
type mover interface {
	moves.Way
	// where returns the machine that can reach the service, and its address.
	where() (machine, address string)
	// keepsClient reports whether a client may continue during a move.
	keepsClient() bool
	// afresh reports whether each move needs a container of its own.
	afresh() bool
}

func (s *suite) newMover(
	way string, of *services.App, w moves.Workload, archive string, model engine.Container,
) mover {
	switch way {
	case moves.WayRsync:
		return peerMover{moves.NewRsync(s.Bed, w, model), of, nil}
	case moves.WayPodman:
		return peerMover{moves.NewPodman(s.Bed, w, archive), of, nil}
	case moves.WayLazy:
		bundle := moves.NewBundle(s.Bed, moves.Plug{Name: "lazy", Number: 4}, model)
		return lazyMover{moves.NewLazy(s.Bed, w, bundle, moves.PeerPatience), of}
	case wayStopRsync, wayRestartRsync:
		return newRestartMover(s.Bed, of, w, model, way == wayRestartRsync)
	}
	return peerMover{moves.NewPreDump(s.Bed, w, model), of, moves.CanPreDump}
}

// tryPeer measures one way over all links.
func (s *suite) tryPeer(ctx context.Context, t trial, m mover, all []*results.Series) (err error) {
	if p, is := m.(peerMover); is && p.cannot != nil {
		if err := p.cannot(ctx); err != nil {
			return fmt.Errorf("not on this machine: %w", err)
		}
	}
	started := false
	defer func() {
		if started {
			err = errors.Join(err, m.Stop(context.WithoutCancel(ctx)))
		}
	}()
	for _, one := range all {
		for one.Runs < t.runs {
			s.Say("%s, %s, %s: run %d of %d", one.Workload, one.Link, one.Way, one.Runs+1, t.runs)
			first := !started
			if started && m.afresh() {
				first, started = true, false
				if err := m.Stop(ctx); err != nil {
					return err
				}
			}
			measured, points, err := s.movePeer(ctx, t, m, one.Link, first)
			started = true
			if err != nil {
				return err
			}
			if err := s.measured(one, measured, points); err != nil {
				return err
			}
		}
	}
	return nil
}

// movePeer moves a service once, after a client has used it.
func (s *suite) movePeer(
	ctx context.Context, t trial, m mover, link string, first bool,
) (_ []results.Measurement, seen [][2]float64, err error) {
	if err := s.SetLink(testbed.LinkFaster); err != nil {
		return nil, nil, err
	}
	if first {
		if err := m.Start(ctx); err != nil {
			return nil, nil, err
		}
	}
	client, err := t.app.Connect(ctx, func(ctx context.Context) (net.Conn, error) {
		machine, address := m.where()
		return s.Bed.Lab.Dial(ctx, machine, t.app.Network, address)
	}, first)
	if err != nil {
		return nil, nil, err
	}
	end := sync.OnceValue(client.Close)
	defer func() { err = errors.Join(err, end()) }()
	if err := services.AwaitAnswers(ctx, client); err != nil {
		return nil, nil, err
	}
	if !m.keepsClient() { // its connection would break
		if err := end(); err != nil {
			return nil, nil, err
		}
	}
	if err := s.SetLink(link); err != nil {
		return nil, nil, err
	}
	requested := time.Now()
	measured, err := m.Move(ctx)
	if err != nil || !m.keepsClient() {
		return withLimits(withTotal(measured), s.Bed.Bandwidth, testbed.RTTOf(link)), nil, err
	}
	if err := services.AwaitAnswers(ctx, client); err != nil {
		return nil, nil, err
	}
	measured = append(measured, results.Measurement{results.Gap, client.Answers().Gap(requested).Seconds()})
	seen = points(client, requested)
	checking, cancel := context.WithTimeout(ctx, services.Patience)
	defer cancel()
	return withLimits(measured, s.Bed.Bandwidth, testbed.RTTOf(link)), seen, client.Check(checking)
}

// withTotal adds the total time for ways that do nothing before the freeze.
func withTotal(measured []results.Measurement) []results.Measurement {
	if slices.ContainsFunc(measured, func(m results.Measurement) bool { return m.Metric == results.Total }) {
		return measured
	}
	for _, m := range measured {
		switch m.Metric {
		case results.Downtime:
			measured = append(measured, results.Measurement{results.Total, m.Value},
				results.Measurement{results.Handoff, m.Value})
		case results.Sent:
			measured = append(measured, results.Measurement{results.FreezeBytes, m.Value})
		}
	}
	return measured
}

// peerMover is a way of the suite switchover.
type peerMover struct {
	moves.Way
	app    *services.App
	cannot func(context.Context) error // returns why this machine cannot use this way
}

func (p peerMover) keepsClient() bool { return false }

func (p peerMover) afresh() bool { return false }

func (p peerMover) where() (machine, address string) {
	switch w := p.Way.(type) {
	case *moves.Rsync:
		return w.At, w.Plug.Server(p.app.Port)
	case moves.PreDump:
		return w.At, w.Plug.Server(p.app.Port)
	case *moves.Podman:
		return w.At, w.Plug.Server(p.app.Port)
	}
	return "", ""
}

// lazyMover is CRIU's own lazy migration.
type lazyMover struct {
	*moves.Lazy
	app *services.App
}

func (l lazyMover) keepsClient() bool { return false }

func (l lazyMover) afresh() bool { return true }

func (l lazyMover) where() (machine, address string) {
	return l.At, l.Plug.Server(l.app.Port)
}

// Move notes the size of the memory, and adds the push to the total time.
func (l lazyMover) Move(ctx context.Context) ([]results.Measurement, error) {
	pid, err := l.Container.Pid(ctx, l.At)
	if err != nil {
		return nil, err
	}
	if l.Size, err = l.Bed.MemoryOf(l.At, pid); err != nil {
		return nil, err
	}
	result, err := l.Lazy.Move(ctx, func() {})
	if err != nil {
		return nil, err
	}
	measured := withTotal(result.Measured)
	for _, m := range result.Measured {
		if m.Metric == results.Push {
			for i := range measured {
				if measured[i].Metric == results.Total {
					measured[i].Value += m.Value
				}
			}
		}
	}
	return append(measured, results.Measurement{results.Sent, l.Size}), nil
}

// restartMover is study D's way without a cluster: rsync copies the volume while the service runs, or not
// at all; then the service is stopped, the volume copied again, and the service started on the other node.
type restartMover struct {
	moves.Peer
	app       *services.App
	container moves.Bundle
	ahead     bool // with a first copy
	now       atomic.Value
}

func newRestartMover(
	b *testbed.Bed, of *services.App, w moves.Workload, model engine.Container, ahead bool,
) *restartMover {
	plug := moves.Plug{Name: "restart", Number: 5}
	r := &restartMover{
		Peer: moves.Peer{Bed: b, Workload: w, Plug: plug, At: testbed.Nodes[0]}, app: of,
		container: moves.NewBundle(b, plug, model), ahead: ahead,
	}
	r.now.Store(r.At)
	return r
}

func (r *restartMover) Name() string {
	if r.ahead {
		return wayRestartRsync
	}
	return wayStopRsync
}

func (r *restartMover) keepsClient() bool { return true }

func (r *restartMover) afresh() bool { return true }

func (r *restartMover) where() (machine, address string) {
	return r.now.Load().(string), r.Plug.Server(r.app.Port)
}

func (r *restartMover) Start(ctx context.Context) error {
	r.At = testbed.Nodes[0]
	r.now.Store(r.At)
	for _, node := range testbed.Nodes {
		if err := r.container.Make(ctx, testbed.Nodes[0], node); err != nil {
			return err
		}
	}
	return r.container.Start(ctx, r.At)
}

func (r *restartMover) Move(ctx context.Context) ([]results.Measurement, error) {
	from, to := r.At, testbed.Other(r.At)
	dir, err := r.container.MountDir(testbed.Nodes[0], r.app.Volume)
	if err != nil {
		return nil, err
	}
	var first float64
	before, err := r.Bed.Sent()
	if err == nil && r.ahead {
		first, err = r.sync(ctx, from, dir)
	}
	if err != nil {
		return nil, err
	}
	between, err := r.Bed.Sent()
	if err != nil {
		return nil, err
	}
	stop, err := r.Bed.Time(ctx, from, "sh", "-c",
		"kill -TERM $0; while [ -d /proc/$0 ]; do sleep 0.02; done", fmt.Sprint(r.mustPID(ctx, from)))
	if err != nil {
		return nil, err
	}
	again, err := r.sync(ctx, from, dir)
	if err != nil {
		return nil, err
	}
	sent, err := r.Bed.Sent()
	if err != nil {
		return nil, err
	}
	start, err := r.startAt(ctx, to)
	if err != nil {
		return nil, err
	}
	down := stop + again + start
	return []results.Measurement{
		{results.Downtime, down}, {results.Handoff, first + down}, {results.Total, first + down},
		{metricStop, stop}, {results.Copy, again},
		{metricStart, start}, {results.Sent, sent - before}, {results.FreezeBytes, sent - between},
	}, nil
}

// mustPID returns the PID of the container's first process; 0, which cannot be ended, if there is none.
func (r *restartMover) mustPID(ctx context.Context, node string) int {
	pid, err := r.container.Pid(ctx, node)
	if err != nil {
		return 0
	}
	return pid
}

// sync copies the volume.
func (r *restartMover) sync(ctx context.Context, from, dir string) (float64, error) {
	address, err := r.Bed.Lab.Address(testbed.Other(from))
	if err != nil {
		return 0, err
	}
	below, err := filepath.Rel(testbed.BenchDir, dir)
	if err != nil {
		return 0, err
	}
	// rsync's exit code 24 means that files vanished during the copy.
	const copyAll = `rsync -aHAXS --numeric-ids --delete "$0/" "$1/" || [ $? = 24 ]`
	return r.Bed.Time(ctx, from, "sh", "-c", copyAll, dir,
		fmt.Sprintf("rsync://%s:%d/%s/%s", address, testbed.RsyncPort, testbed.RsyncBench, below))
}

// startAt starts the service and waits until it answers.
func (r *restartMover) startAt(ctx context.Context, to string) (float64, error) {
	if err := r.container.Kill(ctx, r.At); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := r.container.Start(ctx, to); err != nil {
		return 0, err
	}
	r.At = to
	r.now.Store(to)
	machine, address := r.where()
	conn, err := r.Bed.DialProgram(ctx, machine, address)
	if err != nil {
		return 0, err
	}
	return time.Since(began).Seconds(), conn.Close()
}

func (r *restartMover) Stop(ctx context.Context) error {
	return errors.Join(r.Disconnect(), r.container.Remove(ctx, testbed.Nodes[0]),
		r.container.Remove(ctx, testbed.Nodes[1]))
}
