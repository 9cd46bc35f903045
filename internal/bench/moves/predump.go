package moves

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
)

// WayPreDump is the name of PreDump.
const WayPreDump = "criu pre-dump"

// CanPreDump asks CRIU whether this kernel supports its pre-dump.
func CanPreDump(ctx context.Context) error {
	tool, err := criu.Find()
	if err != nil {
		return err
	}
	if err := exec.CommandContext(ctx, tool.Path, "check", "--feature", "mem_dirty_track").Run(); err != nil {
		return fmt.Errorf("criu check --feature mem_dirty_track: %w: the kernel has no soft-dirty", err)
	}
	return nil
}

// PreDump is the way of studies B and C with one dump ahead: runc checkpoint --pre-dump, rsync, runc
// checkpoint of pages written since, rsync, runc restore. CRIU needs the kernel's soft-dirty bits for it.
type PreDump struct{ *Rsync }

// NewPreDump returns the way for a container made after a model.
func NewPreDump(b *testbed.Bed, w Workload, model engine.Container) PreDump {
	r := NewRsync(b, w, model)
	r.Plug = Plug{Name: "predump", Number: 6}
	r.container = NewBundle(b, r.Plug, model)
	return PreDump{r}
}

// Name implements Way.
func (PreDump) Name() string { return WayPreDump }

// The two dumps are in neighbouring directories: the second one refers to the first.
const dumpAhead, dumpRest = "ahead", "rest"

// Move implements Way.
func (p PreDump) Move(ctx context.Context) ([]results.Measurement, error) {
	from, to := p.At, testbed.Other(p.At)
	if err := plugIn(ctx, p.Bed, to, p.Plug); err != nil {
		return nil, err
	}
	ahead, err := p.dump(ctx, dumpAhead, "--pre-dump")
	if err != nil {
		return nil, err
	}
	first, err := p.Bed.Copy(ctx, from, p.container.images()+"/")
	if err != nil {
		return nil, err
	}
	size, err := p.Bed.SizeOf(from, p.container.images())
	if err != nil {
		return nil, err
	}
	checkpoint, err := p.dump(ctx, dumpRest, "--parent-path", "../"+dumpAhead)
	if err != nil {
		return nil, err
	}
	rest, err := p.Bed.SizeOf(from, p.container.images()+"/"+dumpRest)
	if err != nil {
		return nil, err
	}
	copied, err := p.Bed.CopyMore(ctx, from, p.container.images()+"/")
	if err != nil {
		return nil, err
	}
	restore, err := p.container.restore(ctx, to, testbed.Incoming+"/"+dumpRest)
	if err != nil {
		return nil, err
	}
	p.At = to
	down := checkpoint + copied + restore
	return []results.Measurement{
		{results.Downtime, down}, {results.Handoff, ahead + first + down},
		{results.Total, ahead + first + down},
		{results.Round, ahead},
		{results.Checkpoint, checkpoint}, {results.Copy, copied}, {results.Restore, restore},
		{results.Sent, size + rest}, {results.FreezeBytes, rest},
	}, nil
}

// dump makes one of the two dumps. The first one leaves the container running.
func (p PreDump) dump(ctx context.Context, name string, options ...string) (float64, error) {
	c := p.container
	images := c.images()
	if name == dumpAhead {
		if err := p.Bed.Empty(p.At, images); err != nil {
			return 0, err
		}
	}
	for _, dir := range []string{images + "/" + name, c.work()} {
		if err := p.Bed.Empty(p.At, dir); err != nil {
			return 0, err
		}
	}
	args := append([]string{"checkpoint", "--image-path", images + "/" + name, "--work-path", c.work(),
		"--tcp-established"}, options...)
	return p.Bed.Time(ctx, p.At, c.runc(append(args, c.name)...)...)
}
