package predict

import (
	"fmt"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

const (
	// The largest error of a forecast that is not reported, as a factor and in seconds.
	farOff      = 1.5
	farOffSlack = 0.1
	// A cause explains a longer migration if it differs from the known value by this factor.
	causeFactor = 1.3
)

// Forecast is what was expected of a migration, and the input of the prediction.
type Forecast struct {
	Prediction Prediction
	Input      Input
}

// WaitOver returns how long a client may wait for an answer if the rest follows. left is the time that the
// rest takes at the full speed of the link; rate is the bytes of pages that were written per second in the
// last round.
func (f Forecast) WaitOver(left, rtt time.Duration, rate float64) time.Duration {
	written := max(rate*answer, f.Input.Container.Curve.Within(answer, f.Input.Container.memory()))
	split := SplitOver(left, rtt).Seconds()
	faults := firstFaults + written/float64(memory.PageSize())/perFault
	return duration(wait(min(faults*(rtt.Seconds()+faultWork), split), split))
}

// Missed explains by how much a migration took longer than expected, and why; empty: the forecast was about
// right, or the migration changed its mode. A migration that took less time is not reported.
func (f Forecast) Missed(report migration.Report) string {
	p := f.Prediction
	if report.Mode != p.Mode {
		return ""
	}
	var missed []string
	for _, one := range []struct {
		what     string
		expected Interval
		took     float64
	}{{"the freeze", p.Downtime, report.DowntimeSeconds}, {"the migration", p.Total, report.TotalSeconds}} {
		if one.took > max(one.expected.High, farOff*one.expected.Expected,
			one.expected.Expected+farOffSlack) {
			missed = append(missed, fmt.Sprintf("%s took %s, and %s was expected", one.what,
				Seconds(one.took), spread(one.expected)))
		}
	}
	if len(missed) == 0 {
		return ""
	}
	return strings.Join(missed, "; ") + ": " + strings.Join(f.causes(report), ", and ")
}

// causes lists the conditions that differed from the forecast's assumptions.
func (f Forecast) causes(report migration.Report) (causes []string) {
	link, seen := f.Input.Link, report.Link
	if now, then := seen.BandwidthBitsPerSecond, link.BandwidthBitsPerSecond; now > 0 &&
		then > causeFactor*now {
		causes = append(causes, fmt.Sprintf("the link carried %s, not %s", bits(now), bits(then)))
	}
	if now, then := seen.RTTSeconds, link.RTTSeconds; now > causeFactor*then+farOffSlack/10 {
		causes = append(causes, fmt.Sprintf("a round trip took %s, not %s", Seconds(now), Seconds(then)))
	}
	if now, then := report.DirtyingRateBytesPerSecond, f.rate(report); then > 0 && now > causeFactor*then {
		causes = append(causes, fmt.Sprintf("the container wrote %s of pages per second, not %s", Size(now),
			Size(then)))
	}
	frozen := float64(report.Bytes.MemoryFinal + report.Bytes.FilesFinal)
	if now, then := frozen, f.Prediction.FrozenBytes; len(causes) == 0 && now > causeFactor*then.High &&
		now > window {
		causes = append(causes, fmt.Sprintf("%s left in the freeze, not %s", Size(now), Size(then.Expected)))
	}
	if len(causes) == 0 {
		causes = append(causes, "the machines were slower than in earlier migrations: perhaps they had "+
			"other work to do")
	}
	return causes
}

// rate returns the expected bytes written per second in the last round; 0: not known.
func (f Forecast) rate(report migration.Report) float64 {
	seconds := 1.0
	for _, round := range report.Rounds {
		if !round.Final {
			seconds = max(round.Seconds, 0.1)
		}
	}
	curve := f.Input.Container.Curve.With(f.Input.Longer)
	return curve.Within(seconds, f.Input.Container.memory()) / seconds
}
