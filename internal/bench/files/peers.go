package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/tree"
)

const (
	filesSource = testbed.FilesHome + "/source"
	filesPodman = testbed.FilesHome + "/podman"
	// godwitArchive is a copy of each layer that Godwit keeps beside the layer's files.
	godwitArchive = "layer.tar.zst"
)

// peerFiles is the common part of ways other than Godwit's: files that a keeper writes, outside of any
// container.
type peerFiles struct {
	bed     *testbed.Bed
	what    copying
	archive string // the image
	dir     string // of the files, on the first node
	keeper  *exec.Cmd
}

func (p *peerFiles) home() string { return testbed.FilesHome }

// keep makes the files on the first node, in an existing directory.
func (p *peerFiles) keep(ctx context.Context, dir string) error {
	p.dir = dir
	config := p.what.tree
	config.Dir, config.Listen = dir, filesPort
	if p.what.next > 0 {
		config.Rate = 0 // the files are rewritten between the copies instead
	}
	cmd, err := p.bed.Command(ctx, testbed.Nodes[0], append([]string{testbed.Helper}, config.Args()...))
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("keeper of the files: %w", err)
	}
	p.keeper = cmd
	_, err = p.ask(ctx, tree.AskTell)
	return err
}

func (p *peerFiles) ask(ctx context.Context, question byte) (tree.Result, error) {
	return askTree(ctx, p.bed, testbed.Nodes[0], "127.0.0.1", question)
}

// timed is a copy that returns its duration in seconds.
type timed func(ctx context.Context) (float64, error)

// measure counts the bytes that a copy sends.
func (p *peerFiles) measure(ctx context.Context, do timed) (seconds, sent float64, err error) {
	sent, err = p.bed.Counted(func() error {
		seconds, err = do(ctx)
		return err
	})
	return seconds, sent, err
}

// twice copies while the files are written, and once more when they are not.
func (p *peerFiles) twice(ctx context.Context, do timed) ([]results.Measurement, error) {
	first, firstSent, err := p.measure(ctx, do)
	if err != nil {
		return nil, err
	}
	// rsync treats a file as unchanged if its size and the second of its modification time are the same.
	if err := testbed.Pause(ctx, time.Second); err != nil {
		return nil, err
	}
	questions := slices.Repeat([]byte{tree.AskNext}, p.what.next)
	if p.what.flip {
		questions = append(questions, tree.AskFlip)
	}
	for _, question := range append(questions, tree.AskRest) {
		if _, err := p.ask(ctx, question); err != nil {
			return nil, err
		}
	}
	again, againSent, err := p.measure(ctx, do)
	if err != nil {
		return nil, err
	}
	return []results.Measurement{
		{metricFirst, first}, {metricFirstSent, firstSent}, {metricAgain, again},
		{metricAgainSent, againSent},
		{results.Downtime, again}, {results.Total, first + again}, {results.Link, firstSent + againSent},
	}, nil
}

// once is for files that do not change.
func (p *peerFiles) once(ctx context.Context, do timed) ([]results.Measurement, error) {
	seconds, sent, err := p.measure(ctx, do)
	return []results.Measurement{{results.Total, seconds}, {results.Link, sent}}, err
}

// end ends the keeper. The files are removed with their disk.
func (p *peerFiles) end(ctx context.Context) error {
	var failed error
	if p.keeper != nil {
		failed = testbed.EndAll("the keeper of the files", []*exec.Cmd{p.keeper})
		p.keeper = nil
	}
	for _, node := range testbed.Nodes {
		failed = errors.Join(failed, forgetImage(ctx, p.bed, node))
	}
	return failed
}

// rsyncFilesWay is the way of studies B and C: rsync while the container runs, and again in the freeze. Of
// an image it copies the layers in Godwit's form.
type rsyncFilesWay struct {
	peerFiles
	ssh bool
}

func (r *rsyncFilesWay) Start(ctx context.Context) error {
	for _, node := range testbed.Nodes {
		if err := r.bed.Empty(node, testbed.FilesIncoming); err != nil {
			return err
		}
	}
	if len(r.what.image) == 0 {
		if err := r.bed.Empty(testbed.Nodes[0], filesSource); err != nil {
			return err
		}
		return r.keep(ctx, filesSource)
	}
	if _, err := r.bed.Exec(ctx, testbed.Nodes[0], testbed.Program, "image", "load", r.archive); err != nil {
		return err
	}
	r.dir = moves.GodwitLayers
	if !r.what.there {
		return nil
	}
	_, err := r.rsync(ctx) // so that they are there
	return err
}

func (r *rsyncFilesWay) rsync(ctx context.Context) (float64, error) {
	address, err := r.bed.Lab.Address(testbed.Nodes[1])
	if err != nil {
		return 0, err
	}
	command := []string{"rsync", "-aHAXS", "--numeric-ids", "--delete", "--exclude", godwitArchive}
	to := fmt.Sprintf("rsync://%s:%d/%s/", address, testbed.RsyncPort, testbed.RsyncFiles)
	if r.ssh {
		command = append(command, "--rsh", strings.Join(ssh(), " "))
		to = fmt.Sprintf("root@%s:%s/", address, testbed.FilesIncoming)
	}
	return r.bed.Time(ctx, testbed.Nodes[0], append(command, r.dir+"/", to)...)
}

func (r *rsyncFilesWay) copy(ctx context.Context) ([]results.Measurement, error) {
	if len(r.what.image) > 0 {
		return r.once(ctx, r.rsync)
	}
	return r.twice(ctx, r.rsync)
}

func (r *rsyncFilesWay) verify(ctx context.Context) error {
	if len(r.what.image) > 0 {
		// rsync has compared their times and sizes, and nothing knows their expected contents
		return nil
	}
	return verifyTree(ctx, r.bed, testbed.Nodes[1], testbed.FilesIncoming, r.what.tree)
}

func (r *rsyncFilesWay) Stop(ctx context.Context) error { return r.end(ctx) }

// podmanStore returns a command line of a Podman that keeps everything on the node's disk.
func podmanStore(b *testbed.Bed, args ...string) []string {
	all := moves.PodmanCommand(b, "--root", filesPodman, "--runroot", testbed.BenchDir+"/podman-run")
	return append(all, args...)
}

// pipe runs a command on the first node and passes its output to a command on the other, by ssh. It returns
// how long that takes.
func pipe(ctx context.Context, b *testbed.Bed, from, to []string) (float64, error) {
	address, err := b.Lab.Address(testbed.Nodes[1])
	if err != nil {
		return 0, err
	}
	left, err := b.Command(ctx, testbed.Nodes[0], from)
	if err != nil {
		return 0, err
	}
	right, err := b.Command(ctx, testbed.Nodes[0], append(append(ssh(), "root@"+address.String()), to...))
	if err != nil {
		return 0, err
	}
	var complaints [2]strings.Builder
	left.Stderr, right.Stderr = &complaints[0], &complaints[1]
	if right.Stdin, err = left.StdoutPipe(); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := left.Start(); err != nil {
		return 0, err
	}
	err = right.Run()
	if err != nil {
		_, _ = io.Copy(io.Discard, right.Stdin) // so that the other can end
	}
	if err = errors.Join(err, left.Wait()); err != nil {
		return 0, fmt.Errorf("%s | %s: %w: %s%s", strings.Join(from, " "), strings.Join(to, " "),
			err, &complaints[0], &complaints[1])
	}
	return time.Since(began).Seconds(), nil
}

// podmanVolumeWay is podman volume export | podman volume import, which copies everything each time.
type podmanVolumeWay struct{ peerFiles }

// data returns the directory of a volume's files.
func (podmanVolumeWay) data() string {
	return filepath.Join(filesPodman, "volumes", filesVolume, "_data")
}

func (p *podmanVolumeWay) Start(ctx context.Context) error {
	for _, node := range testbed.Nodes {
		if err := moves.MountPodman(ctx, p.bed, node); err != nil {
			return err
		}
		if _, err := p.bed.Exec(ctx, node,
			podmanStore(p.bed, "volume", "create", filesVolume)...); err != nil {
			return err
		}
	}
	return p.keep(ctx, p.data())
}

func (p *podmanVolumeWay) copy(ctx context.Context) ([]results.Measurement, error) {
	return p.twice(ctx, func(ctx context.Context) (float64, error) {
		return pipe(ctx, p.bed, podmanStore(p.bed, "volume", "export", filesVolume),
			podmanStore(p.bed, "volume", "import", filesVolume, "-"))
	})
}

func (p *podmanVolumeWay) verify(ctx context.Context) error {
	return verifyTree(ctx, p.bed, testbed.Nodes[1], p.data(), p.what.tree)
}

func (p *podmanVolumeWay) Stop(ctx context.Context) error { return p.stopPodman(ctx) }

// stopPodman ends the keeper first, because it uses Podman's files.
func (p *peerFiles) stopPodman(ctx context.Context) error {
	failed := p.end(ctx)
	for _, node := range testbed.Nodes {
		if moves.PodmanMounted(p.bed, node) {
			failed = errors.Join(failed, moves.UnmountPodman(ctx, p.bed, node))
		}
	}
	return failed
}

// podmanSaveWay is podman save | podman load.
type podmanSaveWay struct{ peerFiles }

func (p *podmanSaveWay) Start(ctx context.Context) error {
	for _, node := range testbed.Nodes {
		if err := moves.MountPodman(ctx, p.bed, node); err != nil {
			return err
		}
	}
	_, err := p.bed.Exec(ctx, testbed.Nodes[0],
		podmanStore(p.bed, "load", "--quiet", "--input", p.archive)...)
	return err
}

func (p *podmanSaveWay) image() string { return "localhost/" + filesImage + ":latest" }

func (p *podmanSaveWay) copy(ctx context.Context) ([]results.Measurement, error) {
	return p.once(ctx, func(ctx context.Context) (float64, error) {
		return pipe(ctx, p.bed, podmanStore(p.bed, "save", "--quiet", p.image()),
			podmanStore(p.bed, "load", "--quiet"))
	})
}

func (p *podmanSaveWay) verify(ctx context.Context) error {
	_, err := p.bed.Exec(ctx, testbed.Nodes[1], podmanStore(p.bed, "image", "exists", p.image())...)
	return err
}

func (p *podmanSaveWay) Stop(ctx context.Context) error { return p.stopPodman(ctx) }
