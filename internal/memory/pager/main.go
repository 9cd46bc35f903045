package pager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory"
)

// spareThreads is the number of threads beyond the processors, so that a fault is served although all
// workers are in the kernel.
const spareThreads = 4

// Main is the main function of a pager. It returns the exit code when the memory is complete, or not
// needed.
func Main([]string) int {
	// Ending this process ends the container, so ending a session or a service must not do that.
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	runtime.GOMAXPROCS(runtime.NumCPU() + spareThreads)
	// Best effort, because it needs CAP_SYS_RESOURCE: when memory is short, this process should be killed
	// last.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
	p := &process{resumed: make(chan struct{})}
	err := kernel.NoCoreDump()
	if err == nil {
		err = p.run()
	}
	if err != nil {
		p.log(err)
		return 1
	}
	return 0
}

// process is the pager process.
type process struct {
	control *channel
	setup   setup
	group   *cgroup.Cgroup
	socket  *criu.LazyListener
	remote  *link // nil: no pages come later
	filler  *filler
	resumed chan struct{} // closed when the agent reports it, or is gone

	mu    sync.Mutex
	guard *cgroup.Guard // nil when the container no longer needs one

	noting sync.Mutex
	report memory.FillReport
}

// run runs the pager. If it returns an error when processes may be missing memory, the guard is armed, and
// everything stays open until the guard has killed them.
func (p *process) run() error {
	var err error
	if p.control, err = newChannel(os.NewFile(controlFD, "control")); err != nil {
		return err
	}
	if err := p.prepare(); err != nil {
		_ = p.control.send(message{Kind: kindFailed, Error: err.Error()}) // the agent may be gone
		return errors.Join(err, p.disarm())
	}
	if err := p.control.send(message{Kind: kindOK}); err != nil {
		return errors.Join(err, p.disarm())
	}
	served, err := p.waitForImage()
	if !served || err != nil {
		return errors.Join(err, p.disarm())
	}
	restored, err := p.takeTasks()
	switch {
	case err != nil:
		return p.lose(err)
	case !restored:
		p.filler.close()
		p.noting.Lock()
		defer p.noting.Unlock()
		p.report.State = memory.FillNone
		_ = writeReport(p.setup.Report, p.report) // its directory goes with the arrival
		return p.disarm()
	}
	return p.fill()
}

// arm starts a guard, and another if that is killed.
func (p *process) arm() error {
	guard, err := cgroup.StartGuard(p.group)
	if err != nil {
		return err
	}
	p.guard = guard
	go func() {
		_ = guard.Wait() // only its end matters
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.guard != guard {
			return
		}
		if err := p.arm(); err != nil {
			p.log(fmt.Errorf("the guard was killed, and a new one could not be started: %w", err))
		}
	}()
	return nil
}

func (p *process) disarm() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	guard := p.guard
	p.guard = nil
	if guard == nil {
		return nil
	}
	return guard.Disarm()
}

// log writes to the pager's log.
func (p *process) log(err error) {
	fmt.Fprintf(os.Stderr, "%s godwit memory pager: %v\n", time.Now().Format(time.RFC3339), err)
}

// prepare does everything that can be done before there is an image.
func (p *process) prepare() error {
	m, err := p.control.receive()
	if err != nil {
		return err
	}
	if m.Kind != kindSetup || m.Setup == nil {
		return fmt.Errorf("the agent says %q, want %q", m.Kind, kindSetup)
	}
	p.setup = *m.Setup
	self, err := kernel.ReadProcess(os.Getpid())
	if err != nil {
		return err
	}
	p.report.PID, p.report.StartTicks = self.PID, self.StartTicks
	if p.socket, err = criu.ListenLazy(p.setup.WorkDir); err != nil {
		return err
	}
	if p.setup.Remote != "" {
		if p.remote, err = listenRemote(p.setup.Remote); err != nil {
			return err
		}
	}
	if p.group, err = cgroup.Open(p.setup.Cgroup); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.arm()
}

// waitForImage waits for the image; false if there will be none.
func (p *process) waitForImage() (bool, error) {
	m, err := p.control.receive()
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		return false, nil
	}
	if err == nil && (m.Kind != kindServe || m.images[0] == nil) {
		err = fmt.Errorf("the agent says %q, want %q", m.Kind, kindServe)
	}
	if err == nil {
		err = p.open(&memory.Image{Pages: m.images[0], Index: m.images[1]})
	}
	if err == nil {
		err = writeReport(p.setup.Report, p.report)
	}
	if err != nil {
		_ = p.control.send(message{Kind: kindFailed, Error: err.Error()}) // the agent may be gone
		return false, err
	}
	return true, p.control.send(message{Kind: kindOK})
}

// open maps the image. Pages are read into the mapping as they are used; remote pages are written to it.
func (p *process) open(image *memory.Image) error {
	slots, err := image.ReadIndex()
	if err != nil {
		return err
	}
	info, err := image.Pages.Stat()
	if err != nil {
		return err
	}
	var data []byte
	if info.Size() > 0 {
		data, err = unix.Mmap(int(image.Pages.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map %d bytes of memory: %w", info.Size(), err)
		}
	}
	p.filler = newFiller(slots, data, image.Pages)
	for i := range slots {
		p.report.Pages += int64(slots[i].Pages())
	}
	p.report.RemotePages = p.filler.remoteLeft.Load()
	p.report.LeftPages, p.report.State, p.report.Started = p.report.Pages, memory.Filling, time.Now()
	p.report.RemoteLeft = p.report.RemotePages
	if p.remote != nil {
		p.remote.fresh = func() { p.note(func(*memory.FillReport) {}) }
		p.remote.serve(p.filler)
	} else if p.report.RemotePages > 0 {
		return fmt.Errorf("%d pages come later, and there is no connection for them", p.report.RemotePages)
	}
	return image.Index.Close()
}

// takeTasks serves the restore until it is over; false if it failed and nothing runs.
func (p *process) takeTasks() (bool, error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		defer close(p.resumed)
		if err := p.waitForResume(); err != nil {
			stop() // if CRIU has not come by now, it never will
		}
	}()
	restore, err := p.socket.Accept(ctx)
	if err != nil {
		return false, nil //nolint:nilerr // The agent is gone before CRIU came: nobody will restore.
	}
	defer restore.Close()
	type end struct {
		restored bool
		err      error
	}
	ends := make(chan end, 1)
	go func() {
		restored, err := p.takeAll(restore)
		ends <- end{restored, err}
	}()
	select { // a restore can wait for a page that cannot be filled
	case e := <-ends:
		return e.restored, e.err
	case err := <-p.filler.failed:
		return false, err
	}
}

// waitForResume returns when the processes run. Meanwhile it fills the pages that they are likely to touch
// first.
func (p *process) waitForResume() error {
	m, err := p.control.receive()
	if err == nil && m.Kind == kindRestored {
		go p.filler.ready(p.resumed)
		m, err = p.control.receive()
	}
	if err == nil && m.Kind != kindResumed {
		err = fmt.Errorf("the agent says %q, want %q", m.Kind, kindResumed)
	}
	return err
}

// takeAll takes the processes that are restored.
func (p *process) takeAll(restore *criu.LazyRestore) (bool, error) {
	for {
		task, more, err := restore.Next()
		switch {
		case errors.Is(err, criu.ErrRestoreFailed):
			return false, nil
		case err != nil:
			return false, err
		case !more:
			return true, nil
		case task.Faults < 0:
			continue
		}
		if err := p.filler.add(memory.Task(task.PID), task.Faults); err != nil {
			return false, err
		}
	}
}

// resumePatience is how long only touched pages are filled if the agent does not report that the processes
// run.
const resumePatience = 100 * time.Millisecond

// fill runs until the memory is complete. CRIU still has work to do before the processes run: the
// background must not take the processor and the memory away from it.
func (p *process) fill() error {
	p.note(func(r *memory.FillReport) { r.Resumed = time.Now() })
	select {
	case <-p.resumed:
	case <-time.After(resumePatience):
	case err := <-p.filler.failed:
		return p.lose(err)
	}
	stop := p.keepFresh()
	err := p.filler.run()
	stop()
	if err != nil {
		return p.lose(err)
	}
	p.note(func(r *memory.FillReport) {
		r.Completed, r.State = time.Now(), memory.Filled
		if p.filler.counts.completed.Load() == 0 && p.filler.counts.died.Load() > 0 {
			r.State = memory.FillEnded
		}
	})
	if p.remote != nil {
		p.remote.close()
	}
	return p.disarm()
}

// freshness is the interval at which the report is written, and ended processes are searched, while pages
// are missing that may take hours to come.
const freshness = time.Second

// keepFresh does that until stop is called.
func (p *process) keepFresh() (stop func()) {
	if p.filler.remoteLeft.Load() == 0 {
		return func() {}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(freshness)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.filler.bury()
				p.note(func(*memory.FillReport) {})
			case <-over:
				return
			}
		}
	}()
	return func() { close(over); <-ended }
}

// lose reports that the memory cannot be completed. The guard does the rest when this process ends.
func (p *process) lose(err error) error {
	p.note(func(r *memory.FillReport) { r.State, r.Error = memory.FillLost, err.Error() })
	return err
}

// note writes the report after a change. If it cannot be written, the container is gone.
func (p *process) note(change func(*memory.FillReport)) {
	p.noting.Lock()
	defer p.noting.Unlock()
	r := &p.report
	change(r)
	p.filler.tell(r)
	if err := writeReport(p.setup.Report, *r); err != nil {
		p.log(fmt.Errorf("write the report: %w", err))
	}
}
