package studies

import (
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// The ways that only the suite studies has.
const (
	wayStagedPreCopy = "godwit staged pre-copy" // with a copy of the memory before the request
	wayStagedHybrid  = "godwit staged hybrid"
	wayStagedAuto    = "godwit staged auto"
	wayRestartRsync  = "rsync, stop, rsync, start" // study D's, with one checkpoint
	wayStopRsync     = "stop, rsync, start"        // and with none
)

// Ways lists the ways of the suite studies.
func Ways() []string {
	return []string{
		moves.WayRsync, moves.WayPreDump, moves.WayLazy, moves.WayPodman, wayStopRsync, wayRestartRsync,
		moves.WayAuto, moves.WayCold, moves.WayPreCopy,
		moves.WayPostCopy, moves.WayHybrid,
		wayStagedAuto, wayStagedPreCopy, wayStagedHybrid, moves.WayRestart, moves.WayStopped,
	}
}

// Metrics of the suite studies.
const (
	metricDowntimeLimit = "downtime_limit_seconds" // minimum for these bytes at the link's bandwidth
	metricTotalLimit    = "total_limit_seconds"    // the same for all bytes sent
	metricStep          = "step_%s_seconds"        // a phase in which the container runs
	metricStage         = "stage_seconds"          // before the request
	metricStageBytes    = "stage_bytes"
	metricStill         = "picture_still_seconds" // how long the picture stood still
	metricStop          = "stop_seconds"          // until the processes had ended
	metricStart         = "start_seconds"         // until they answer again
)

// Links of the suite studies.
const (
	linkStudyA5    = "5mbit/50ms"
	linkStudyA10   = "10mbit/50ms"
	linkStudyA20   = "20mbit/50ms"
	linkStudyA50   = "50mbit/50ms"
	linkStudyA100  = "100mbit/50ms"
	linkStudyA500  = "500mbit/6ms"
	linkManagement = "72.41mbit/6.94ms" // study B's
	linkStudyD50   = "50mbit/20ms"
	linkStudyD100  = "100mbit/20ms"
)

const imageNotThere = ", image not there"

// trial is one workload of a study.
type trial struct {
	study  string
	app    services.App
	links  []string // a quick run uses the first
	ways   []string
	absent bool     // the target has no part of the image
	runs   int      // of each way over each link
	quick  int      // in a quick run; 0: none
	few    []string // its ways
}

func (t *trial) title() string {
	title := fmt.Sprintf("study %s: %s", t.study, t.app.Name)
	if t.absent {
		title += imageNotThere
	}
	return title
}

func (t *trial) turns() testbed.Turns {
	return testbed.Turns{Title: t.title(), Ways: &t.ways, Runs: &t.runs, Quick: t.quick}
}

// trials returns the trials of the suite studies. Six runs are the fewest whose lowest and highest enclose
// the median with 95 % certainty.
func trials() []trial {
	modes := []string{moves.WayAuto, moves.WayCold, moves.WayPreCopy, moves.WayPostCopy, moves.WayHybrid}
	staged := append(slices.Clone(modes), wayStagedAuto, wayStagedPreCopy, wayStagedHybrid)
	peers := []string{moves.WayRsync, moves.WayPreDump, moves.WayLazy, moves.WayPodman}
	with := slices.Concat[[]string]
	studyA := []string{linkStudyA100, linkStudyA5, linkStudyA10, linkStudyA20, linkStudyA50, linkStudyA500}
	fast := []string{testbed.LinkFast}
	follow := with([]string{moves.WayRsync, moves.WayPreDump}, staged)
	return []trial{
		{study: "a", app: services.Busybox(), links: studyA, ways: with(peers, staged),
			few: with(peers, modes, []string{wayStagedAuto}), runs: 6, quick: 1},
		{
			study: "a", app: services.Recogniser(), links: studyA, ways: with(peers, staged), runs: 6,
			quick: 1,
			few: []string{moves.WayRsync, moves.WayPreDump, moves.WayAuto, moves.WayCold, moves.WayPostCopy,
				wayStagedAuto},
		},
		{
			study: "b", app: services.CoAP(500), links: []string{linkManagement, testbed.LinkMobility},
			ways: with(peers, modes), runs: 6, quick: 1,
			few: with([]string{moves.WayRsync, moves.WayPreDump, moves.WayLazy}, modes),
		},
		{study: "b", app: services.CoAP(10), links: []string{linkManagement, testbed.LinkMobility},
			ways: with(peers, modes), runs: 6},
		{study: "c", app: services.Blank(), links: fast, ways: with(peers, staged), few: follow, runs: 6,
			quick: 1},
		{study: "c", app: services.Blank(), links: fast, ways: modes, few: []string{moves.WayAuto},
			absent: true,
			runs:   6,
			quick:  1},
		{study: "c", app: services.Video(), links: fast, ways: with(peers, staged), few: follow, runs: 6,
			quick: 1},
		{study: "c", app: services.Video(), links: fast, ways: modes, few: []string{moves.WayAuto},
			absent: true,
			runs:   6,
			quick:  1},
		{
			study: "d", app: services.Broker(400e6, 100),
			links: []string{linkStudyD100, linkStudyD50, testbed.LinkStudyD},
			runs:  6, quick: 1,
			ways: with([]string{wayStopRsync, wayRestartRsync}, modes,
				[]string{moves.WayRestart, moves.WayStopped}),
			few: []string{wayStopRsync, wayRestartRsync, moves.WayAuto, moves.WayRestart},
		},
	}
}

// Names lists the workloads of the suite studies.
func Names() []string {
	all := trials()
	titles := make([]string, len(all))
	for i := range all {
		titles[i] = all[i].title()
	}
	return titles
}
