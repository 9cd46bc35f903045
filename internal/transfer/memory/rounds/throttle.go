package rounds

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/progress"
)

// throttle slows a container down that writes its memory faster than it can be sent.
type throttle struct {
	processor Processor
	figures   *progress.Tracker

	begun bool    // it may be throttled
	cpus  float64 // that it may use; 0: not throttled
	// What it had used, and when, at the begin and when it was last slowed down.
	used time.Duration
	at   time.Time
}

// watch begins to look at how much processor time the container uses.
func (t *throttle) watch(ctx context.Context) {
	if used, err := t.processor.CPUTime(ctx); err == nil { // if not, slower tells
		t.used, t.at = used, time.Now()
	}
}

// slower lets the container use so much less processor time that it should write half as fast as
// its memory can be sent, if it writes in proportion. Many programs write the same pages again and
// again, so several steps may be needed. False: it has the least already.
func (t *throttle) slower(ctx context.Context, dirtying, throughput float64) (bool, error) {
	if t.cpus > 0 && t.cpus <= predict.LeastThrottle {
		return false, nil
	}
	used, err := t.processor.CPUTime(ctx)
	if err != nil {
		t.figures.Decided(fmt.Sprintf("not throttled: %s", err))
		return false, err
	}
	cpus := (used - t.used).Seconds() / time.Since(t.at).Seconds()
	if t.cpus > 0 {
		cpus = min(cpus, t.cpus)
	}
	before, share := cpus, predict.ThrottleStep
	if dirtying > 0 {
		share = min(share, throughput/2/dirtying)
	}
	cpus = max(predict.LeastThrottle, before*share)
	t.begun = true
	if err := t.processor.Throttle(ctx, cpus); err != nil {
		t.figures.Decided(fmt.Sprintf("not throttled: %s", err))
		return false, err
	}
	t.cpus, t.used, t.at = cpus, used, time.Now()
	t.figures.Throttled(cpus, t.at)
	t.figures.Decided(fmt.Sprintf("throttled to %.2f processors after %d rounds; it used %.2f", cpus,
		t.figures.Rounds(), before))
	return true, nil
}

// patience is after how many rounds that do not help something else is tried: sooner once it is
// throttled, because then it is known that it does not converge by itself.
func (t *throttle) patience() int {
	if t.cpus > 0 {
		return 1
	}
	return 0
}

// unthrottlePatience is how long a container stays frozen for its engine to answer, however busy that is.
const unthrottlePatience = 10 * time.Second

// end lets the container, which is frozen, use what it may use.
func (t *throttle) end(ctx context.Context) error {
	if !t.begun {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unthrottlePatience)
	defer cancel()
	if err := t.processor.Throttle(ctx, 0); err != nil {
		return err
	}
	t.begun, t.cpus = false, 0
	t.figures.Throttled(0, time.Now())
	return nil
}
