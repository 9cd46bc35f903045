package predict

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// program writes in a simulation: it returns how many distinct pages it writes within a time, drawn anew at
// each call.
type program interface {
	distinct(seconds float64, chance *rand.Rand) float64 // pages
}

// groups are groups of pages that are each written at random moments, at the group's rate.
type groups []struct {
	pages int
	rate  float64 // per second, of each page
}

func (g groups) distinct(seconds float64, chance *rand.Rand) float64 {
	count := 0
	for _, one := range g {
		p := 1 - math.Exp(-one.rate*seconds)
		for range one.pages {
			if chance.Float64() < p {
				count++
			}
		}
	}
	return float64(count)
}

// cycle writes one page after the other, again and again.
type cycle struct{ pages, rate float64 }

func (c cycle) distinct(seconds float64, _ *rand.Rand) float64 {
	return math.Min(c.pages, math.Round(c.rate*seconds))
}

// bursts is idle for most of each second.
type bursts struct{ groups }

func (b bursts) distinct(seconds float64, chance *rand.Rand) float64 {
	if seconds < 0.2 && chance.Float64() > 0.3+seconds {
		return 0
	}
	return b.groups.distinct(seconds, chance)
}

// simulation is a migration of a program, page by page and round by round, over a link and on machines
// whose speed varies. It shares the rules for the end of rounds with the agent, and only Costs with the
// model.
type simulation struct {
	in      Input
	program program
	pages   float64
	chance  *rand.Rand
	page    float64 // bytes of a page on the link
	stats   []memory.RoundStats
}

func (s *simulation) about(seconds float64) float64 { return seconds * (0.85 + 0.3*s.chance.Float64()) }

func (s *simulation) bytesPerSecond() float64 { return s.in.Link.BandwidthBitsPerSecond / 8 * carried }

// transfer returns how long so many pages take: the link's speed varies, and the processor may be slower.
func (s *simulation) transfer(pages float64) float64 {
	link := pages * s.page / (s.bytesPerSecond() * (0.93 + 0.1*s.chance.Float64()))
	return math.Max(link, pages*float64(memory.PageSize())/s.in.Source.PageBytesPerSecond)
}

func (s *simulation) round(pages, interval float64) float64 {
	took := s.transfer(pages) + s.in.Link.RTTSeconds
	s.stats = append(s.stats, memory.RoundStats{
		Number: len(s.stats), Pages: uint64(pages), SentBytes: uint64(pages * s.page),
		Duration: duration(took), Interval: duration(interval),
	})
	return took
}

func (s *simulation) decide(mode migration.Mode) memory.Decision {
	policy := RoundsPolicy(mode, s.in.Demands.Settings, Overhead+duration(s.in.Link.RTTSeconds))
	return memory.Decide(s.stats, s.bytesPerSecond(), policy)
}

// opens returns how long it takes to open a window for so many bytes, or for everything that the link
// holds.
func (s *simulation) opens(bytes float64) (seconds float64) {
	rtt := s.in.Link.RTTSeconds
	for window := 14e3; ; window *= 2 {
		seconds += rtt
		if 2*window >= math.Min(bytes, s.bytesPerSecond()*rtt) {
			return seconds
		}
	}
}

// run returns downtime and total time.
func (s *simulation) run(mode migration.Mode) (downtime, total float64) {
	k, rtt := DefaultCosts(), s.in.Link.RTTSeconds
	asked := s.about(k.Examine+k.Reserve) + rtt
	ready, connected := asked+s.about(k.Arrive), math.Max(asked, k.TripsConnect*rtt)
	end := s.about(k.End) + k.TripsEnd*rtt + k.Kill*s.pages*float64(memory.PageSize())
	freeze := s.about(k.Dump) + s.about(k.Restore) + rtt/2 + k.StateBytes/s.bytesPerSecond()
	raw := s.pages * float64(memory.PageSize())
	if mode == migration.Cold {
		downtime = freeze + s.transfer(s.pages) + s.about(k.RestoreByte*raw)
		return downtime, math.Max(ready+s.about(k.Prepare),
			connected+s.opens(StateMargin*(s.pages*s.page+k.StateBytes))) + downtime + end
	}
	before := s.about(k.Rounds) + k.TripsRounds*rtt +
		math.Max(ready, connected+s.opens(math.Max(raw/StateShare, LeastState)))
	prepare := s.about(k.Prepare) + k.TripsPrepare*rtt
	if mode == migration.PostCopy {
		downtime = freeze + k.Tables*raw + s.transfer(16)
		return downtime, before + prepare + rtt + k.TripsPush*rtt + downtime + s.transfer(s.pages)/pushShare +
			rtt + end
	}
	fits, rounds, last := s.rounds(mode)
	if !fits && mode == migration.Hybrid {
		prepare += k.TripsPush * rtt
		left := s.program.distinct(last+prepare, s.chance)
		downtime = freeze + k.Tables*raw
		return downtime, before + rounds + prepare + downtime + s.transfer(left)/pushShare + rtt + end
	}
	for range CatchUpRounds {
		last = s.round(s.program.distinct(last+prepare, s.chance), last+prepare)
		rounds, prepare = rounds+last+prepare, 0
		if !fits || s.decide(mode).Verdict != memory.Continue {
			break
		}
	}
	left := s.transfer(s.program.distinct(last+k.Quiesce, s.chance))
	downtime = freeze + math.Max(0, left-k.Dump/2) + k.Tables*raw
	return downtime, before + rounds + downtime + end
}

func (s *simulation) rounds(mode migration.Mode) (fits bool, seconds, last float64) {
	pages := s.pages
	for interval := 0.0; ; interval = last {
		last = s.round(pages, interval)
		seconds += last
		if d := s.decide(mode); d.Verdict != memory.Continue {
			return d.Verdict == memory.Switch, seconds, last
		}
		pages = s.program.distinct(last, s.chance)
	}
}

// watch measures the curve of a program as the agent would, in windows up to longest.
func watch(p program, longest float64, chance *rand.Rand) Curve {
	var curve Curve
	for _, window := range Windows() {
		if window <= longest {
			curve = append(curve, Point{window, p.distinct(window, chance) * float64(memory.PageSize())})
		}
	}
	return curve
}

func simulated(p program, pages float64, bits, rtt, ratio, watched float64, seed uint64) *simulation {
	chance := rand.New(rand.NewPCG(seed, 1))
	settings, err := migration.Settings{DowntimeTarget: 100 * time.Millisecond}.Complete()
	if err != nil {
		panic(err)
	}
	in := Input{
		Container: Container{
			PrivateBytes: int64(pages) * int64(memory.PageSize()), Curve: watch(p, watched, chance),
			Ratio: ratio, SampledPages: 1000,
			Processes: 1, Threads: 1,
		},
		Link:    Link{RTTSeconds: rtt, BandwidthBitsPerSecond: bits},
		Source:  Machine{Cores: 2, PageBytesPerSecond: 1e9, CompressBytesPerSec: 1e9},
		Demands: Demands{Settings: settings},
	}
	m := newModel(in, level())
	return &simulation{in: in, program: p, pages: pages, chance: chance,
		page: m.wire * float64(memory.PageSize())}
}
