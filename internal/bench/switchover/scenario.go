package switchover

import (
	"errors"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

// The workloads of the suite switchover. All but two consist only of memory, whose every page is verified.
const (
	workloadIdle64   = "idle-64MiB"    // nothing is written
	workloadIdle1024 = "idle-1GiB"     // the same
	workloadIdle4096 = "idle-4GiB"     // the same
	workloadBusy     = "busy-1GiB"     // 10 MB/s are written, anywhere
	workloadShared   = "shared-256MiB" // nothing is written to shared memory
	workloadForked   = "forked-256MiB" // 4 processes share it copy-on-write
	workloadFog      = "fog"           // study B's server: 110 MB, of which 10 MB are written at 500 KB/s
	workloadFogHalf  = "fog-half"      // the same, half compressible
	// study A's OpenFace: 140 MB, of which 22 MB are written again and again
	workloadRecogniser = "recogniser"
)

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// Ways lists the ways in which the suite switchover moves containers, in the order of their turns.
func Ways() []string {
	return []string{moves.WayFloor, moves.WayRsync, moves.WayPodman, moves.WayCold, moves.WayPreCopy}
}

// scenario is a workload that is moved over several links in several ways.
type scenario struct {
	moves.Workload
	links []string
	ways  []string
	runs  int // of each way over each link
	quick int // in a quick run, over the first link; 0: none
	warm  int // round trips over the first link that do not count: they fill caches on both nodes
}

// scenarios returns the scenarios of the suite switchover.
func scenarios() []scenario {
	tiny := moves.Workload{Name: moves.WorkloadTiny, Image: "busybox", Args: []string{"sleep", "1000000"}}
	redis := moves.Workload{Name: moves.WorkloadRedis, Image: "redis", Port: moves.RedisPort}
	all, own, preCopy := Ways(), []string{moves.WayCold, moves.WayPreCopy}, []string{moves.WayPreCopy}
	withRsync := []string{moves.WayRsync, moves.WayCold, moves.WayPreCopy}
	fast, faster := []string{testbed.LinkFast}, []string{testbed.LinkFaster}
	return []scenario{
		{tiny, fast, all, 7, 3, 2},
		{tiny, []string{testbed.LinkMiddle, testbed.LinkDistant}, all, 5, 0, 0},
		{redis, fast, all, 7, 3, 2},
		{redis, []string{testbed.LinkMiddle}, all, 5, 0, 0},
		{redis, []string{testbed.LinkDistant}, all, 2, 0, 0},
		{moves.OfPages(workloadIdle64, pages.Config{Size: 64 * results.Mebi}), faster, own, 5, 3, 2},
		{moves.OfPages(workloadIdle1024, pages.Config{Size: results.Gibi}), fast, own, 3, 0, 0},
		{moves.OfPages(workloadIdle4096, pages.Config{Size: 4 * results.Gibi}), faster, preCopy, 3, 0, 0},
		{moves.OfPages(workloadBusy, pages.Config{Size: results.Gibi, Rate: 10e6}), fast, withRsync, 3, 1, 0},
		{moves.OfPages(workloadShared, pages.Config{Size: 256 * results.Mebi, Kind: pages.Shared}), fast,
			append([]string{moves.WayFloor}, own...), 3, 1, 0},
		{moves.OfPages(workloadForked, pages.Config{Size: 256 * results.Mebi, Processes: 4}), fast, own, 3, 1,
			0},
		// Study B does not say which pages are written: here the same 10 MB are written again and again.
		{moves.OfPages(workloadFog, pages.Config{Size: moves.FogBytes, Rate: 500e3, Hot: 10e6}),
			[]string{testbed.LinkMobility},
			withRsync, 1, 0, 0},
		{
			moves.OfPages(workloadFogHalf,
				pages.Config{Size: moves.FogBytes, Rate: 500e3, Hot: 10e6, Half: true}),
			[]string{testbed.LinkMobility}, preCopy, 1, 0, 0,
		},
		{moves.OfPages(workloadRecogniser,
			pages.Config{Size: 140e6, Rate: 22e6, Hot: 22e6, Order: pages.Cycle}),
			[]string{testbed.LinkSlow}, preCopy, 1, 0, 0},
	}
}

// Names lists the workloads.
func Names() []string {
	return testbed.NamesOf(scenarios(), scenario.title)
}

// Links lists the links.
func Links() []string {
	var names []string
	for _, s := range scenarios() {
		for _, link := range s.links {
			if !slices.Contains(names, link) {
				names = append(names, link)
			}
		}
	}
	return names
}

func (s scenario) title() string { return s.Name }

// selected returns the scenarios that a configuration selects, with its links, ways and numbers of runs.
func selected(c testbed.Config) ([]scenario, error) {
	all := scenarios()
	if c.Memory.Size > 0 {
		all = []scenario{{moves.OfPages("memory", c.Memory), []string{testbed.LinkFast},
			[]string{moves.WayRsync, moves.WayCold, moves.WayPreCopy}, 5, 2, 2}}
	}
	chosen, err := testbed.Choose("workload", all, scenario.title, c.Workloads)
	if err != nil {
		return nil, err
	}
	if _, err := testbed.Choose("way", Ways(), testbed.Itself, c.Ways); err != nil {
		return nil, err
	}
	selected := []scenario{}
	for _, s := range chosen {
		links, err := linksOf(c, s)
		if err != nil {
			return nil, err
		}
		s.links = slices.DeleteFunc(slices.Clone(links),
			func(link string) bool { return measures(selected, s.Name, link) })
		if ways, err := testbed.Choose("way", s.ways, testbed.Itself, c.Ways); err == nil {
			s.ways = ways
		} else {
			continue // none of its ways was selected
		}
		if c.Quick {
			s.runs = s.quick
		}
		if c.Runs > 0 && s.runs > 0 {
			s.runs = c.Runs
		}
		if s.runs > 0 && len(s.links) > 0 {
			selected = append(selected, s)
		}
	}
	if len(selected) == 0 {
		return nil, errors.New("nothing to measure: these workloads are not moved in these ways over " +
			"these links, or not in a quick run")
	}
	return selected, nil
}

// measures reports whether a workload is measured over a link already: a link that is named in full belongs
// to every scenario.
func measures(selected []scenario, workload, link string) bool {
	return slices.ContainsFunc(selected,
		func(s scenario) bool { return s.Name == workload && slices.Contains(s.links, link) })
}

// linksOf returns the links over which a scenario is measured: its own ones that match a selected prefix,
// and all that are named in full.
func linksOf(c testbed.Config, s scenario) ([]string, error) {
	if len(c.Links) == 0 {
		if c.Quick {
			return s.links[:1], nil
		}
		return s.links, nil
	}
	var links []string
	for _, asked := range c.Links {
		if strings.Contains(asked, "/") {
			if _, err := testbed.ParseLink(asked); err != nil {
				return nil, err
			}
			links = append(links, asked)
			continue
		}
		if _, err := testbed.Choose("link", Links(), testbed.Itself, []string{asked}); err != nil {
			return nil, err
		}
		for _, own := range s.links {
			if strings.HasPrefix(own, asked) {
				links = append(links, own)
			}
		}
	}
	return links, nil
}
