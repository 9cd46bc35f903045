package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
)

// list is one look at containers of this node, shared by all greetings of an interval: what an idle agent
// costs must not grow with the number of peers times containers.
type list struct {
	ask   func(ctx context.Context) ([]engine.Container, error)
	every time.Duration        // the interval
	age   func() time.Duration // for how long a look is good; nil: an interval
	// hasty: nobody waits for longer than lookPatience, and then not again before a look has ended well.
	// What was known before is told instead, for oldAges intervals, unless something has changed since; and
	// then, with an error, what still runs of it.
	hasty    bool
	patience time.Duration // 0: lookPatience

	mu         sync.Mutex
	generation int       // counts the changes
	valid      bool      // nothing has changed since the last look that ended well
	taken      time.Time // of that look
	ticks      uint64    // likewise, since boot
	containers []engine.Container
	err        error                         // of the last look
	running    map[uint64]*engine.Definition // of these, by Short; nil: nobody has asked
	underWay   *look                         // nil: none is
	late       bool                          // the last look that somebody waited for has taken too long
	heard      bool                          // a look has ended, well or not
}

// look is a look that is under way, or has ended: then done is closed.
type look struct {
	generation int // before it began
	began      time.Time
	ticks      uint64 // since boot; 0: not known
	done       chan struct{}
	containers []engine.Container
	err        error
}

// lookPatience is how long a greeting waits for an engine, and what is done for all engines for one of them.
const lookPatience = 500 * time.Millisecond

// watchedAges is for how many intervals a list of an engine's containers is good while that engine tells of
// changes. It may forget to: Docker drops events that nobody takes, and begins to send them a moment after it
// says so.
const watchedAges = 10

// oldAges is for how many intervals the list of an engine is told that does not answer.
const oldAges = 10

// errHangs is why nobody knows what containers an engine has.
var errHangs = errors.New("it has not answered yet")

// errUnheard is errHangs of an engine whose first look has not ended.
var errUnheard = fmt.Errorf("%w since the agent was started", errHangs)

// changed has the next caller look again: a migration has ended here, or a user has made a call that
// may have started or ended something. A look that began before is not used.
func (l *list) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.generation++
	l.valid = false
}

// get returns the containers as they were at most an age ago, and after the last change; if changes do not
// end, as they were after the call. The slice must not be changed.
func (l *list) get(ctx context.Context) ([]engine.Container, error) {
	for again := true; ; again = false {
		l.mu.Lock()
		if l.valid && time.Since(l.taken) < l.goodFor() {
			defer l.mu.Unlock()
			return l.containers, nil
		}
		look := l.look(ctx)
		l.mu.Unlock()
		if !l.await(look) {
			return l.old()
		}
		l.mu.Lock()
		unchanged := l.generation == look.generation
		l.mu.Unlock()
		switch {
		case look.err != nil && l.hasty:
			return l.runningYet(), look.err
		case unchanged || !again:
			return look.containers, look.err
		}
	}
}

// look begins to look, unless somebody does so already. There is one look at a time. The caller has locked
// mu.
func (l *list) look(ctx context.Context) *look {
	if l.underWay != nil {
		return l.underWay
	}
	look := &look{generation: l.generation, began: time.Now(), done: make(chan struct{})}
	look.ticks, _ = kernel.Ticks()
	l.underWay = look
	guard.Go(func() error {
		look.err = guard.Do(func() (err error) {
			look.containers, err = l.ask(ctx)
			return err
		})
		l.mu.Lock()
		defer l.mu.Unlock()
		l.underWay, l.err, l.heard = nil, look.err, true
		l.late = l.late && look.err != nil && !errors.Is(look.err, engine.ErrAway)
		if look.err == nil {
			l.valid = l.generation == look.generation
			l.containers, l.taken, l.ticks, l.running = look.containers, look.began, look.ticks, nil
		}
		close(look.done)
		return nil
	})
	return look
}

// await returns when a look has ended; false: that takes too long for a greeting.
func (l *list) await(look *look) bool {
	if !l.hasty {
		<-look.done
		return true
	}
	l.mu.Lock()
	patience := time.Until(look.began.Add(cmp.Or(l.patience, lookPatience)))
	if l.late {
		patience = 0
	}
	l.mu.Unlock()
	select {
	case <-look.done:
		return true
	case <-time.After(patience):
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = l.late || l.underWay == look
	return false
}

// old is what was known before a look that takes too long.
func (l *list) old() ([]engine.Container, error) {
	l.mu.Lock()
	is := l.valid && time.Since(l.taken) < oldAges*l.every
	containers, heard := l.containers, l.heard
	l.mu.Unlock()
	switch {
	case is:
		return containers, nil
	case !heard:
		return nil, errUnheard
	}
	return l.runningYet(), errHangs
}

// runningYet are those containers that ran at the last look that ended well, and of which the first process
// still runs: that needs no answer of their engine.
func (l *list) runningYet() (running []engine.Container) {
	l.mu.Lock()
	containers, ticks := l.containers, l.ticks
	l.mu.Unlock()
	for _, one := range containers {
		if one.State != engine.Running || one.PID <= 0 {
			continue
		}
		if process, err := kernel.ReadProcess(one.PID); err == nil && process.RanAt(ticks) {
			running = append(running, one)
		}
	}
	return running
}

// lacks reports whether the engine has answered, when it was asked last or not long ago, that it does not
// run a container. One that is away runs none of those whose first processes have ended. A container of
// which nothing is known may run.
func (l *list) lacks(container string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	slow := l.late && !(l.valid && time.Since(l.taken) < oldAges*l.every)
	if slow || l.err != nil && !errors.Is(l.err, engine.ErrAway) {
		return false
	}
	return l.err != nil || !slices.ContainsFunc(l.containers, func(one engine.Container) bool {
		return one.Definition.ID == container && (one.State == engine.Running || one.State == engine.Damaged)
	})
}

func (l *list) goodFor() time.Duration {
	if l.age == nil {
		return l.every
	}
	return l.age()
}

// claims are the running containers among those that get returns, by Short. The map must not be changed.
func (l *list) claims(ctx context.Context) (map[uint64]*engine.Definition, error) {
	containers, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running == nil || !l.valid {
		l.running = runningOf(containers)
	}
	return l.running, nil
}

// Short shortens a container's id for a claim: the whole id would only cost bytes. False: it is not an id.
func Short(container string) (short uint64, is bool) {
	const digits = 16
	if len(container) < digits {
		return 0, false
	}
	short, err := strconv.ParseUint(container[:digits], 16, 64)
	return short, err == nil
}

func runningOf(containers []engine.Container) map[uint64]*engine.Definition {
	running := map[uint64]*engine.Definition{}
	for i := range containers {
		one := &containers[i]
		if short, is := Short(one.Definition.ID); is && one.State == engine.Running {
			running[short] = &one.Definition
		}
	}
	return running
}
