package predict

import (
	"math"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

const (
	// usualStop and usualStart are the times of a program with little state: it handles the signal at once,
	// and listens soon.
	usualStop, usualStart = 0.1, 1.0
	// Pages that the restore and the first instructions after it touch are sent in the freeze, for this
	// long at most, or this many bytes.
	touchedBytes = 64 << 10
	touchedTime  = 0.020 // seconds of the link
	leastTouched = 16 * 4096
)

// of returns the cost of a mode.
func (m *model) of(mode migration.Mode) outcome {
	out := outcome{parts: m.corrected(mode)}
	switch mode {
	case migration.Cold:
		m.cold(&out)
	case migration.Restart:
		m.restart(&out)
	default:
		m.live(&out, mode)
	}
	out.targetCPU = out.sourceCPU * pageShare
	out.total = out.handoff + out.parts.End
	if out.remote > 0 {
		m.follow(&out)
	}
	return out
}

// fixed returns the parts of a mode according to the costs.
func (m *model) fixed(mode migration.Mode) Parts {
	k, c, slow := m.costs, m.in.Container, m.slowness()
	// The target is asked, and then prepares itself, while the connection to it is made and its window
	// opened.
	asked := (k.Examine+k.Reserve+k.Entry*float64(c.FileTreeEntries))*slow + m.rtt
	ready, connected := asked+k.Arrive*slow, max(asked, k.TripsConnect*m.rtt)
	p := Parts{
		Ahead:  (k.Prepare + k.Quiesce) * slow,
		Freeze: m.anyway(),
		End:    k.End*slow + k.TripsEnd*m.rtt + k.Kill*c.memory(),
	}
	if mode == migration.Cold { // the wait opens the window
		p.Begin = max(ready, connected)
		warmed := connected + m.warm(StateMargin*(c.memory()*m.wire+m.state())) - p.Begin
		p.Ahead = max(k.Prepare*slow, warmed) + k.Quiesce*slow
		return p
	}
	p.Begin = max(ready, connected+m.warm(m.ahead()))
	p.Ahead += k.Rounds*slow + (k.TripsRounds+k.TripsPrepare)*m.rtt
	p.Freeze += k.Tables * c.memory() * slow
	switch mode {
	case migration.PostCopy:
		p.Ahead += k.TripsPush * m.rtt
		p.Freeze += k.Touched * slow
	case migration.Restart:
		p.Freeze = m.rtt/2 + k.Entry*float64(c.FileTreeEntries)*slow
	}
	return p
}

// anyway returns how long a container is frozen for everything except its memory.
func (m *model) anyway() float64 {
	return (m.costs.Dump+m.costs.Restore+m.more()+
		m.costs.Entry*float64(m.in.Container.FileTreeEntries))*m.slowness() + m.rtt/2 + m.state()/m.bandwidth
}

// Work returns the time for dump and restore of a container, without the link and its memory, on the
// machine of DefaultCosts.
func Work(c Container) float64 {
	m := newModel(Input{Container: c}.sane(), level())
	return m.costs.Dump + m.costs.Restore + m.more() + m.costs.Tables*c.memory()
}

// cold sends everything in the freeze.
func (m *model) cold(out *outcome) {
	c, k := m.in.Container, m.costs
	raw, slow := c.memory(), m.slowness()
	out.frozen = raw*m.wire + m.state() + float64(c.FileTreeBytes)
	out.bytes = out.frozen + float64(c.MissingLayerBytes)
	out.sourceCPU = raw * (m.perByte + k.DumpByte)
	out.targetMemory = raw
	files := float64(c.FileTreeBytes)/m.bandwidth + float64(c.FileTreeEntries)*fileEntry*slow
	out.memorySeconds = max(raw*k.DumpByte*slow, m.send(raw, m.wire))
	out.downtime = out.parts.Freeze + out.memorySeconds + raw*k.RestoreByte*slow + files
	out.handoff = out.parts.Begin + m.layers() + out.parts.Ahead + out.downtime
	out.converges = true
}

// restart stops the container and starts it again.
func (m *model) restart(out *outcome) {
	c := m.in.Container
	left := m.copyFiles(out)
	stop, start := c.StopSeconds, c.StartSeconds
	if stop == 0 {
		stop = usualStop
	}
	if start == 0 {
		start = usualStart * m.slowness()
	}
	out.frozen = left
	out.bytes += left + float64(c.MissingLayerBytes)
	out.downtime = out.parts.Freeze + (stop+start)*m.lean.pace() + left/m.bandwidth
	out.handoff = out.parts.Begin + m.layers() + out.filesSeconds + out.parts.Ahead + out.downtime
	out.converges = true
}

// live sends memory ahead, or lets it follow after the handover.
func (m *model) live(out *outcome, mode migration.Mode) {
	c, k, slow := m.in.Container, m.costs, m.slowness()
	filesLeft := m.copyFiles(out)
	files := filesLeft / m.bandwidth
	leaving, r := mode == migration.PostCopy,
		&roundsSoFar{share: 1, raw: float64(c.PrivateBytes), wire: m.wire}
	last := 0.0
	if leaving {
		m.sharedAhead(out, r)
		out.remote = float64(c.PrivateBytes)
	} else {
		r = m.rounds(out, mode, Overhead.Seconds()+files+m.rtt)
		last = r.history[len(r.history)-1].Duration.Seconds()
		leaving = !out.converges && m.turnsHybrid(mode)
	}
	ahead, between := out.parts.Ahead+r.seconds, k.Prepare*slow+k.TripsPrepare*m.rtt
	var left float64
	if leaving {
		if mode != migration.PostCopy {
			ahead, between = ahead+k.TripsPush*m.rtt, between+k.TripsPush*m.rtt
			out.remote = m.written(last+between+k.Quiesce*slow, r.share)
		}
		left = min(touchedBytes, max(leastTouched, touchedTime*m.bandwidth), out.remote)
	} else {
		var caught float64
		caught, left = m.catchUp(out, mode, r, last+between, files)
		ahead += caught
	}
	out.memorySeconds = m.send(left, m.again)
	out.frozen = left*m.again + m.state() + filesLeft
	out.bytes += out.frozen + float64(c.MissingLayerBytes)
	out.targetMemory = c.memory() - out.remote
	out.downtime = out.parts.Freeze + max(0, out.memorySeconds-k.Dump*slow/2) + files
	out.handoff = out.parts.Begin + m.layers() + out.filesSeconds + ahead + out.downtime
}

// sharedAhead is the round of a post-copy: memory that processes share cannot follow.
func (m *model) sharedAhead(out *outcome, r *roundsSoFar) {
	shared := float64(m.in.Container.SharedBytes)
	r.seconds = m.send(shared, m.wire) + m.rtt
	out.bytes += shared * m.wire
	out.rounds = 1
	out.sourceCPU += shared * m.perByte
	out.converges = true
}

// turnsHybrid reports whether rounds that do not converge end in a handover.
func (m *model) turnsHybrid(mode migration.Mode) bool {
	return mode == migration.Hybrid || m.in.Demands.Settings.OnNoConvergence == migration.TurnHybrid
}

// catchUp sends the pages that were written while the freeze was prepared, and returns how long that takes
// and how much is left then.
func (m *model) catchUp(out *outcome, mode migration.Mode, r *roundsSoFar, interval, files float64) (took,
	left float64) {
	for range CatchUpRounds {
		r.raw = m.written(interval, r.share)
		one := m.round(out, r, interval)
		took += one
		interval = one
		frozen := Overhead.Seconds() + files + m.rtt
		if !out.converges || memory.Decide(r.history, m.bandwidth,
			m.policy(mode, frozen, r)).Verdict != memory.Continue {
			break
		}
	}
	return took, m.written(interval+m.costs.Quiesce*m.slowness(), r.share)
}

// follow adds the time and bytes after the handover.
func (m *model) follow(out *outcome) {
	wire := m.again
	if out.rounds <= 1 {
		wire = m.wire
	}
	out.split = max(m.send(out.remote, wire)/pushShare, out.remote*m.in.Pace.Push) + m.rtt
	out.bytes += out.remote * wire
	out.sourceCPU += out.remote * m.perByte
	out.waiting = m.waits(out.split, out.remote)
	out.burst = min(m.burst(out.remote), out.split)
	out.total += out.split
}

// pushShare is the pushed pages' share of the link beside remote faults: 0.82 to 0.92 ("bench postcopy").
const pushShare = 0.9

// burst returns how long the work of an answer waits for pages while remote bytes are missing. Its pages
// are those that the container writes within the shortest time for which it was watched.
func (m *model) burst(remote float64) float64 {
	faults := m.written(answer, 1) * m.share(remote) / float64(memory.PageSize()) / perFault
	return (firstFaults + faults) * m.fault()
}

// fault returns how long a thread waits for a page.
func (m *model) fault() float64 {
	return m.rtt + float64(memory.PageSize())/m.bandwidth + faultWork*m.slowness()
}

// share returns the remote part of the pages that the container writes, which it writes before all others.
func (m *model) share(remote float64) float64 {
	return remote / math.Max(m.written(mostSeconds, 1), remote)
}

// waits returns the total time that the container's threads wait for pages while remote bytes follow within
// seconds.
func (m *model) waits(seconds, remote float64) float64 {
	threads := float64(max(1, m.in.Container.Threads))
	pageBytes, fault, share := float64(memory.PageSize()), m.fault(), m.share(remote)
	low, high := 0.0, seconds // of work done in that time
	for range 40 {
		work := (low + high) / 2
		faults := m.written(work, 1) * share / 2 / pageBytes / perFault
		if work+faults*fault/threads > seconds {
			high = work
		} else {
			low = work
		}
	}
	return min((seconds-low)*threads+firstFaults*fault, seconds*threads)
}

const (
	// answer is the seconds of work that a program needs for an answer without a migration.
	answer = 0.1
	// faultWork is both nodes' time for a requested page, without the link: 1.5 ms in the median of "bench
	// postcopy".
	faultWork = 1.5e-3
	// firstFaults is the number of pages for which even an idle program waits, one after the other: 2 round
	// trips, over all links of "bench predict".
	firstFaults = 2.0
	// perFault is how many pages come for each requested page: its neighbours are sent with it.
	perFault = 8.0
)
