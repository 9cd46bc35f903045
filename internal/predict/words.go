package predict

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// risk describes in words what can be lost.
func risk(p Prediction) string {
	switch {
	case p.Mode == migration.Restart:
		return "its memory is lost, and its connections end; it is started here again if it does not " +
			"become healthy there"
	case p.Split.Expected > 0:
		return fmt.Sprintf("for %s its state is on two nodes: if either is lost then, it has lost memory",
			Seconds(p.Split.Expected))
	case p.Split.High > 0:
		return fmt.Sprintf("its state may be on two nodes, for %s at most: if either is lost then, it has "+
			"lost memory", Seconds(p.Split.High))
	}
	return "none beyond the freeze: until it runs there, any failure leaves it here as it was"
}

// Seconds formats a time for people.
func Seconds(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 100*time.Second:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}

// Size formats bytes for people.
func Size(bytes float64) string {
	switch {
	case bytes < 1e6:
		return fmt.Sprintf("%.0f kB", bytes/1e3)
	case bytes < 1e9:
		return fmt.Sprintf("%.3g MB", bytes/1e6)
	}
	return fmt.Sprintf("%.3g GB", bytes/1e9)
}

// spread formats the expected value of a time, and its interval.
func spread(i Interval) string {
	return fmt.Sprintf("%s (%s to %s)", Seconds(i.Expected), Seconds(i.Low), Seconds(i.High))
}

// bits formats a bandwidth for people.
func bits(perSecond float64) string {
	switch {
	case perSecond < 1e6:
		return fmt.Sprintf("%.3g kbit/s", perSecond/1e3)
	case perSecond < 1e9:
		return fmt.Sprintf("%.3g Mbit/s", perSecond/1e6)
	}
	return fmt.Sprintf("%.3g Gbit/s", perSecond/1e9)
}

// Better lists changes that would improve a migration beyond the best possible now, and by how much.
func Better(in Input, chosen Prediction) []string {
	better := []string{}
	add := func(what string, changed Input, mode migration.Mode) {
		now := Of(changed, mode)
		for _, metric := range []struct {
			name string
			of   func(Prediction) float64
			more float64 // seconds below which the gain does not matter
		}{
			{"downtime", func(p Prediction) float64 { return p.Downtime.Expected }, 0.05},
			{"handoff", func(p Prediction) float64 { return p.Handoff.Expected }, 0.5},
		} {
			if before, after := metric.of(chosen), metric.of(now); after < 0.7*before &&
				before-after > metric.more {
				better = append(better,
					fmt.Sprintf("%s: %s %s to %s", what, metric.name, Seconds(before), Seconds(after)))
				return
			}
		}
	}
	if in.Container.StagedAge == 0 && chosen.Mode != migration.Restart {
		staged := in
		staged.Container.StagedAge, staged.Container.MissingLayerBytes = stagedAge, 0
		add("stage ahead", staged, migration.PreCopy)
	}
	if in.Container.MissingLayerBytes > 0 {
		there := in
		there.Container.MissingLayerBytes = 0
		add("stage its image's layers ahead", there, chosen.Mode)
	}
	if in.Demands.Settings.BandwidthLimit > 0 {
		free := in
		free.Demands.Settings.BandwidthLimit = 0
		add("without the bandwidth limit", free, chosen.Mode)
	}
	if in.Demands.NoPostCopy {
		free := in
		free.Demands.NoPostCopy = false
		add("without --no-post-copy", free, migration.Hybrid)
	}
	if in.Demands.Split.Bounded() && !splits(chosen.Mode) {
		free := in
		free.Demands.Split = migration.SplitLimit{}
		longer := Of(free, migration.Hybrid)
		if tooLong(in, longer) != "" {
			add(fmt.Sprintf("with both nodes needed for %s (--max-split)",
				Seconds(math.Ceil(longer.Split.High))), free, migration.Hybrid)
		}
	}
	if !chosen.Converges && chosen.Mode == migration.PreCopy &&
		in.Demands.Settings.OnNoConvergence != migration.Throttle {
		slow := in
		slow.Demands.Settings.OnNoConvergence = migration.Throttle
		slowed := Of(slow, migration.PreCopy)
		add(fmt.Sprintf("let it be slowed down to %.2g processors (--on-no-convergence throttle)",
			cmp.Or(slowed.Use.CPUs, 1)), slow, migration.PreCopy)
	}
	return better
}

// stagedAge is the age of a copy that is kept fresh, in the middle.
const stagedAge = 5
