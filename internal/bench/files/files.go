package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/tree"
	"github.com/godwit/godwit/internal/migration"
)

const (
	// Name is the name of the benchmark.
	Name       = "files"
	filesImage = "bench-files"
	filesPort  = 7000
)

// Run measures how a container's files and image get to another node, and which part of that is in the
// freeze, beside rsync and Podman's own ways. When it returns, it has cleaned up the machine. If some ways
// failed, the result has the other measurements; the error lists Godwit's failures.
func Run(ctx context.Context, config testbed.Config) (result results.Result, err error) {
	chosen, err := selectedCopyings(config)
	if err != nil {
		return results.Result{}, err
	}
	return measureFiles(ctx, config, chosen)
}

// measureFiles measures the selected workloads.
func measureFiles(ctx context.Context, config testbed.Config, chosen []copying) (results.Result, error) {
	return testbed.RunInTurns(ctx, config, Name,
		func(ctx context.Context, s *testbed.Suite) (err error) {
			unmake, err := moves.PodmanMountPoint()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, unmake()) }()
			return copyAll(ctx, s, chosen)
		}, judgeCopying)
}

// copyAll measures the selected workloads.
func copyAll(ctx context.Context, s *testbed.Suite, chosen []copying) (err error) {
	var rsyncs testbed.RsyncDaemons
	var sshs sshDaemons
	defer func() { err = errors.Join(err, rsyncs.Stop(), sshs.stop()) }()
	if err := errors.Join(rsyncs.Start(ctx, s.Bed), sshs.start(ctx, s.Bed)); err != nil {
		return err
	}
	plain := ""
	for _, c := range chosen {
		c = c.sized(s.Config.Quick)
		archive := plain
		if plain == "" || len(c.image) > 0 {
			s.Say("%s: the image is made", c.name)
			if archive, err = s.ProgramImage(filesImage, c.image...); err != nil {
				return err
			}
		}
		err := s.TakeTurns(ctx, c.turns(), c.link, func(way string) ([]results.Measurement, error) {
			return copyOnce(ctx, s, c, newCopier(s, way, c, archive))
		})
		if err != nil {
			return err
		}
		if len(c.image) == 0 {
			plain = archive
		} else if err := os.Remove(archive); err != nil { // space is limited
			return err
		}
	}
	return nil
}

// copier is a way to copy files to another node.
type copier interface {
	// home is the directory of the files in a node.
	home() string
	// Start makes the files on the first node.
	Start(ctx context.Context) error
	// copy copies them to the other node and returns its measurements.
	copy(ctx context.Context) ([]results.Measurement, error)
	// verify checks all of them there.
	verify(ctx context.Context) error
	// Stop removes them.
	Stop(ctx context.Context) error
}

func newCopier(s *testbed.Suite, way string, c copying, archive string) copier {
	peer := peerFiles{bed: s.Bed, what: c, archive: archive}
	switch way {
	case wayRsyncTwice:
		return &rsyncFilesWay{peerFiles: peer}
	case wayRsyncSSH:
		return &rsyncFilesWay{peerFiles: peer, ssh: true}
	case wayVolume:
		return &podmanVolumeWay{peerFiles: peer}
	case waySave:
		return &podmanSaveWay{peerFiles: peer}
	case moves.WayStopped:
		return newGodwitFiles(s.Bed, migration.Restart, c, archive, "--checkpoints", "0")
	}
	for _, mode := range []migration.Mode{migration.Cold, migration.PreCopy, migration.Restart} {
		if g := newGodwitFiles(s.Bed, mode, c, archive); g.Name() == way {
			return g
		}
	}
	return nil
}

// copyOnce copies the files once in one way, and checks that all of them are right.
func copyOnce(ctx context.Context, s *testbed.Suite, c copying, way copier) (_ []results.Measurement,
	err error) {
	if err := s.SetLink(testbed.LinkFaster); err != nil {
		return nil, err
	}
	defer func() {
		ending := context.WithoutCancel(ctx)
		err = errors.Join(err, s.SetLink(testbed.LinkFaster), way.Stop(ending),
			dropDisks(ending, s.Bed, way.home()))
	}()
	if err := freshDisks(ctx, s.Bed, way.home()); err != nil {
		return nil, err
	}
	if err := way.Start(ctx); err != nil {
		return nil, err
	}
	// The writes of new files to the disk are not measured.
	if _, err := s.Bed.Exec(ctx, testbed.Nodes[0], "sync"); err != nil {
		return nil, err
	}
	if err := s.SetLink(c.link); err != nil {
		return nil, err
	}
	measured, err := way.copy(ctx)
	if err != nil {
		return nil, err
	}
	measured = append(measured, results.Measurement{metricTree, c.size()})
	return measured, way.verify(ctx)
}

// askTree asks the keeper of files, which may still be making them.
func askTree(ctx context.Context, b *testbed.Bed, node, address string, question byte) (tree.Result, error) {
	conn, err := b.DialProgram(ctx, node, net.JoinHostPort(address, fmt.Sprint(filesPort)))
	if err != nil {
		return tree.Result{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(testbed.Asking)); err != nil {
		return tree.Result{}, err
	}
	result, err := tree.Ask(conn, question)
	return result, errors.Join(err, judgeTree(result))
}

// judgeTree returns a keeper's findings as an error.
func judgeTree(result tree.Result) error {
	if result.Bad > 0 {
		return fmt.Errorf("%d of %d files have wrong contents, the first: %s", result.Bad, result.Files,
			result.Error)
	}
	return nil
}

// verifyTree checks all files in a directory of a node.
func verifyTree(ctx context.Context, b *testbed.Bed, node, dir string, of tree.Config) error {
	of.Dir, of.Verify = dir, true
	out, err := b.Exec(ctx, node, append([]string{testbed.Helper}, of.Args()...)...)
	if err != nil {
		return err
	}
	var result tree.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return fmt.Errorf("what the keeper of files found, %.80q: %w", out, err)
	}
	return judgeTree(result)
}
