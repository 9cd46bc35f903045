package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/criu/examine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// Mount tells CRIU about a mount from outside the container. Key is the mount point in the container at the
// dump; Value is the name under which the restore looks it up.
type Mount struct {
	Key   string
	Value string
}

// DumpRequest says what to dump.
type DumpRequest struct {
	RootPID      int    // the container's first process
	Root         string // the container's root file system, as the dumping process sees it
	WorkDir      string // for the log; must exist
	FreezeCgroup string // cgroup.Cgroup.FreezerDir
	// network namespace in which CRIU runs, see NetworkFor; "": this process's own
	Network        string
	ExternalMounts []Mount  // see ExternalFor
	External       []string // see ExternalFor
	// CRIU finds external mounts itself: those whose source the node has mounted
	Auto bool
	TTY  bool // the container's stdio is a terminal
	// paths, in the container, of files that inotify watches: CRIU cannot find them on an overlay
	Watched    []string
	GhostLimit uint32 // largest deleted but open file in the images, bytes; 0: 1 GiB
	LazyPages  bool   // leave the content of private anonymous memory to somebody else: see LeftOut
	// processes with much private memory that CRIU need not examine: all of it with LazyPages, see Cut,
	// otherwise the unused part
	Large []int
	Facts *KernelFacts // nil: shared memory cannot be left out, see LeaveShared
}

// Dump is a warm CRIU that waits to dump one container.
type Dump struct {
	*session
	request  DumpRequest
	holding  bool // CRIU waits in post-dump
	cut      []LazyMemory
	patience time.Duration // see endPatience
	facts    *os.File      // what CRIU will read about the kernel; nil: CRIU's own cache
}

const (
	dumpLog = "dump.log"
	// errors and warnings: enough for Explain; more costs tens of milliseconds in large trees
	logWarnings = 2
)

// StartDump starts CRIU and returns when it is ready for the request. It sends nothing and stops nothing.
// ctx bounds the start only.
func (t Tool) StartDump(ctx context.Context, request DumpRequest) (*Dump, error) {
	with := sessionFiles{}
	if len(request.Large) > 0 {
		with.cut, with.cutUsed, with.scratch = request.Large, request.LazyPages,
			filepath.Join(request.WorkDir, "tables")
		if err := os.MkdirAll(with.scratch, 0o700); err != nil {
			return nil, fmt.Errorf("make a directory for CRIU: %w", err)
		}
	}
	if request.Network != "" {
		network, err := os.Open(request.Network)
		if err != nil {
			return nil, fmt.Errorf("start %s in the container's network: %w", t.Path, err)
		}
		defer network.Close()
		with.network = network
	}
	d := &Dump{request: request, patience: endPatience}
	if request.Facts != nil {
		with.mounts = func() (err error) {
			d.facts, err = request.Facts.place()
			return err
		}
	}
	s, err := startSession(t.Path, with)
	if err != nil {
		return nil, errors.Join(err, d.closeFacts())
	}
	_, err = s.warm(ctx)
	if err == nil {
		err = kernel.LimitCoreDump(s.pid()) // CRIU must not leave what it reads in a core dump
	}
	if err != nil {
		s.kill()
		s.closeMounts()
		return nil, errors.Join(fmt.Errorf("%s: %w", t.Path, errEnded(ctx, err)), d.closeFacts())
	}
	d.session = s
	return d, nil
}

func (d *Dump) closeFacts() error {
	if d.facts == nil {
		return nil
	}
	file := d.facts
	d.facts = nil
	return file.Close()
}

// Run dumps the container, which the caller has frozen, into imagesDir, an existing directory in memory.
// When it returns nil, the images are complete, CRIU holds the processes stopped, and Release must be
// called. On an error, CRIU has put everything back, the container is frozen as before, and the caller
// thaws it; the error has the reason from CRIU's log. If ctx ends, the dump is given up in the same way, or
// as after Release if it was a lazy dump and at its end. A CRIU that does not end is killed after some
// seconds; processes that it had stopped then continue by themselves.
func (d *Dump) Run(ctx context.Context, imagesDir string) error {
	images, err := os.Open(imagesDir)
	if err != nil {
		return fmt.Errorf("dump process %d: %w", d.request.RootPID, err)
	}
	defer images.Close()
	work, err := os.Open(d.request.WorkDir)
	if err != nil {
		return fmt.Errorf("dump process %d: %w", d.request.RootPID, err)
	}
	defer work.Close()
	request := &rpc.CriuReq{
		Type: rpc.CriuReqType_DUMP.Enum(),
		Opts: d.options(int32(images.Fd()), int32(work.Fd())),
	}
	if d.tables != nil {
		d.tables.serve()
	}
	if err := d.send(request, nil); err != nil {
		return fmt.Errorf("dump process %d: send the request: %w", d.request.RootPID, err)
	}
	if err := d.untilPostDump(ctx); err != nil {
		return fmt.Errorf("dump process %d: %w", d.request.RootPID, err)
	}
	d.holding = true
	err = mendFiles(imagesDir)
	if err == nil && d.tables != nil {
		d.cut, err = d.tables.mend(imagesDir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("dump process %d: %w", d.request.RootPID, err), d.Close())
	}
	return nil
}

// Cut lists, after Run, the memory that CRIU has not examined. The images contain neither its content nor
// where it has any. Somebody else must have carried all of it.
func (d *Dump) Cut() []LazyMemory { return d.cut }

// untilPostDump answers CRIU's notifications up to post-dump, which it leaves unanswered. When ctx ends, it
// refuses the next notification, and CRIU then releases the processes.
func (d *Dump) untilPostDump(ctx context.Context) error {
	defer d.killUnlessDone(ctx, d.patience)()
	for {
		var answer rpc.CriuResp
		if _, err := d.receive(&answer); err != nil {
			// if ctx has ended, CRIU was killed for that
			return d.failure(firstOf(ctx.Err(), errEnded(ctx, err)))
		}
		switch answer.GetType() {
		case rpc.CriuReqType_NOTIFY:
			if answer.GetNotify().GetScript() == "post-dump" {
				if ctx.Err() != nil {
					d.rollBack()
					return d.failure(ctx.Err())
				}
				return nil
			}
			if err := d.reply(ctx.Err() == nil); err != nil {
				return d.failure(err)
			}
		default:
			err := fmt.Errorf("CRIU failed (errno %d)", answer.GetCrErrno())
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return d.failure(err)
		}
	}
}

func (d *Dump) reply(success bool) error {
	return d.send(&rpc.CriuReq{Type: rpc.CriuReqType_NOTIFY.Enum(), NotifySuccess: proto.Bool(success)}, nil)
}

// failure ends a failed dump: when CRIU has ended, it has released the processes. The cause comes from its
// log.
func (d *Dump) failure(err error) error {
	d.end()
	if d.tables != nil {
		err = errors.Join(err, d.tables.failed())
	}
	if cause := explainFile(filepath.Join(d.request.WorkDir, dumpLog)); cause != "" {
		return fmt.Errorf("%w: %s", err, cause)
	}
	return err
}

// options returns the options of `runc checkpoint` (libcontainer/criu_linux.go), so that `runc restore`
// finds what it looks for. The network lock, the cgroups and the log differ: the caller holds packets, the
// engine at the target makes cgroups, and a frozen state must not be restored.
func (d *Dump) options(images, work int32) *rpc.CriuOpts {
	r := d.request
	ghost := r.GhostLimit
	if ghost == 0 {
		ghost = examine.DefaultGhostLimit
	}
	o := &rpc.CriuOpts{
		ImagesDirFd:       &images,
		WorkDirFd:         &work,
		LogFile:           proto.String(dumpLog),
		LogLevel:          proto.Int32(logWarnings),
		Pid:               proto.Int32(int32(r.RootPID)),
		Root:              proto.String(r.Root),
		ManageCgroupsMode: rpc.CriuCgMode_IGNORE.Enum(),
		NetworkLock:       rpc.CriuNetworkLockMethod_SKIP.Enum(),
		NotifyScripts:     proto.Bool(true),
		LeaveRunning:      proto.Bool(false),
		TcpEstablished:    proto.Bool(true),
		TcpSkipInFlight:   proto.Bool(true),
		LinkRemap:         proto.Bool(true),
		FileLocks:         proto.Bool(true),
		EvasiveDevices:    proto.Bool(true),
		ShellJob:          proto.Bool(r.TTY),
		OrphanPtsMaster:   proto.Bool(true),
		GhostLimit:        proto.Uint32(ghost),
		External:          r.External,
	}
	if r.Auto {
		o.AutoExtMnt, o.ExtSharing, o.ExtMasters = proto.Bool(true), proto.Bool(true), proto.Bool(true)
		o.EnableFs = []string{"hugetlbfs", "tracefs", "ramfs"} // the caller has checked that they are empty
	}
	if r.FreezeCgroup != "" {
		o.FreezeCgroup = proto.String(r.FreezeCgroup)
	}
	if r.LazyPages {
		o.LazyPages = proto.Bool(true)
	}
	if len(r.Watched) > 0 {
		// CRIU finds watched files by their file handles, which an overlay lacks, or by searching these
		// paths.
		o.ForceIrmap, o.IrmapScanPaths = proto.Bool(true), r.Watched
	}
	for _, m := range r.ExternalMounts {
		o.ExtMnt = append(o.ExtMnt, &rpc.ExtMountMap{Key: proto.String(m.Key), Val: proto.String(m.Value)})
	}
	return o
}

// Release releases the processes without letting them run. refreeze must freeze the cgroup, which CRIU has
// thawed after it stopped the processes itself, and wait until the cgroup is frozen; then CRIU is killed.
// Afterwards the container is frozen with complete images and can be thawed (after Unrepair) or killed. On
// an error, CRIU is told to put everything back, and the container is frozen as before the dump.
func (d *Dump) Release(refreeze func() error) error {
	if !d.holding {
		return errors.New("release a dump: CRIU does not hold the processes: Run has not returned success")
	}
	d.holding = false
	if err := refreeze(); err != nil {
		d.rollBack()
		return d.failure(fmt.Errorf("release the dump of process %d: %w", d.request.RootPID, err))
	}
	if !d.alive() {
		return d.failure(fmt.Errorf("release the dump of process %d: CRIU ended before it was told to",
			d.request.RootPID))
	}
	d.kill()
	return nil
}

// Close ends CRIU if it still runs. If CRIU holds processes, it first puts everything back; after a lazy
// dump, the state is as after Release. Close may be called at any time after Run has returned, and more
// than once.
func (d *Dump) Close() error {
	if d.holding {
		d.holding = false
		d.rollBack()
	}
	d.kill()
	d.closeMounts()
	return d.closeFacts()
}

// rollBack makes CRIU put everything back, by refusing post-dump, and returns when CRIU has done so. More
// notifications follow, and each must be answered. If CRIU is gone, there is nothing to put back; if it
// does nothing, it is killed. After a lazy dump, CRIU would not receive the refusal but wait for somebody
// who takes the pages (cr-dump.c, cr_lazy_mem_dump). So it is killed at once, as by Release.
func (d *Dump) rollBack() {
	if d.request.LazyPages {
		d.freezeAndKill()
		return
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	done := d.killUnlessDone(over, d.patience)
	success := false
	for d.reply(success) == nil {
		var answer rpc.CriuResp
		if _, err := d.receive(&answer); err != nil || answer.GetType() != rpc.CriuReqType_NOTIFY {
			break
		}
		success = true
	}
	done()
	d.end()
}

// freezeAndKill ends a CRIU that holds the processes, so that they stay frozen.
func (d *Dump) freezeAndKill() {
	ctx, cancel := context.WithTimeout(context.Background(), d.patience)
	defer cancel()
	if group, err := cgroup.At(d.request.FreezeCgroup); err == nil {
		_, _ = group.Freeze(ctx) // processes that cannot be frozen continue by themselves
	}
	d.kill()
}

// end closes the connection, on which CRIU puts everything back and ends, and waits for that. CRIU's log
// says more than its exit code.
func (d *Dump) end() {
	d.close()
	d.collect()
	select {
	case <-d.reaped:
	case <-time.After(d.patience):
		d.kill()
	}
}
