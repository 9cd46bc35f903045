package bench

import (
	"context"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/engine"
)

// preDumpWay is the way of studies B and C with one dump ahead: runc checkpoint --pre-dump, rsync, runc
// checkpoint of pages written since, rsync, runc restore. CRIU needs the kernel's soft-dirty bits for it.
type preDumpWay struct{ *rsyncWay }

func newPreDumpWay(b *testbed.Bed, w containerWorkload, model engine.Container) preDumpWay {
	r := newRsyncWay(b, w, model)
	r.plug = plug{name: "predump", number: 6}
	r.container = newBundle(b, r.plug, model)
	return preDumpWay{r}
}

func (preDumpWay) name() string { return wayPreDump }

// The two dumps are in neighbouring directories: the second one refers to the first.
const dumpAhead, dumpRest = "ahead", "rest"

func (p preDumpWay) move(ctx context.Context) ([]results.Measurement, error) {
	from, to := p.at, testbed.Other(p.at)
	if err := plugIn(ctx, p.bed, to, p.plug); err != nil {
		return nil, err
	}
	ahead, err := p.dump(ctx, dumpAhead, "--pre-dump")
	if err != nil {
		return nil, err
	}
	first, err := p.bed.Copy(ctx, from, p.container.images()+"/")
	if err != nil {
		return nil, err
	}
	size, err := p.bed.SizeOf(from, p.container.images())
	if err != nil {
		return nil, err
	}
	checkpoint, err := p.dump(ctx, dumpRest, "--parent-path", "../"+dumpAhead)
	if err != nil {
		return nil, err
	}
	rest, err := p.bed.SizeOf(from, p.container.images()+"/"+dumpRest)
	if err != nil {
		return nil, err
	}
	copied, err := p.bed.CopyMore(ctx, from, p.container.images()+"/")
	if err != nil {
		return nil, err
	}
	restore, err := p.container.restore(ctx, to, testbed.Incoming+"/"+dumpRest)
	if err != nil {
		return nil, err
	}
	p.at = to
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
func (p preDumpWay) dump(ctx context.Context, name string, options ...string) (float64, error) {
	c := p.container
	images := c.images()
	if name == dumpAhead {
		if err := p.bed.Empty(p.at, images); err != nil {
			return 0, err
		}
	}
	for _, dir := range []string{images + "/" + name, c.work()} {
		if err := p.bed.Empty(p.at, dir); err != nil {
			return 0, err
		}
	}
	args := append([]string{"checkpoint", "--image-path", images + "/" + name, "--work-path", c.work(),
		"--tcp-established"}, options...)
	return p.bed.Time(ctx, p.at, c.runc(append(args, c.name)...)...)
}
