package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/lab"
)

// The workloads, links and ways of the suite switchover.
const (
	workloadTiny  = "tiny"
	workloadRedis = "redis"

	linkFast    = "1gbit/0.4ms"
	linkMiddle  = "100mbit/20ms"
	linkDistant = "10mbit/100ms"

	wayFloor  = "criu floor"
	wayRsync  = "runc and rsync"
	wayPodman = "podman"
	wayGodwit = "godwit cold"
)

// Metrics that several ways have.
const (
	metricDowntime     = "downtime_seconds" // the container does not run
	metricCheckpoint   = "checkpoint_seconds"
	metricCopy         = "copy_seconds"
	metricRestore      = "restore_seconds"
	metricGap          = "client_gap_seconds" // longest time between two answers
	metricBeyond       = "client_gap_beyond_downtime_seconds"
	metricHandoff      = "handoff_seconds"
	metricTotal        = "total_seconds"
	metricSent         = "sent_bytes"
	metricUncompressed = "uncompressed_bytes"
	metricPhase        = "phase_%s_seconds" // a part of the downtime
)

// containerWorkload is what runs in the containers that are moved.
type containerWorkload struct {
	name  string
	image string // of package lab/image
	args  []string
	port  int // of a Redis that is filled and has a client; 0: none
}

const (
	redisPort      = 6379
	redisDataBytes = 64 << 20
	redisRate      = 200 // requests a second of its client
)

func workloads() []containerWorkload {
	return []containerWorkload{
		{name: workloadTiny, image: "busybox", args: []string{"sleep", "1000000"}},
		{name: workloadRedis, image: "redis", port: redisPort},
	}
}

type namedLink struct {
	name  string
	shape lab.Link
}

func links() []namedLink {
	return []namedLink{
		{linkFast, lab.Link{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond}},
		{linkMiddle, lab.Link{BandwidthBitsPerSecond: 100_000_000, RTT: 20 * time.Millisecond}},
		{linkDistant, lab.Link{BandwidthBitsPerSecond: 10_000_000, RTT: 100 * time.Millisecond}},
	}
}

// WorkloadNames lists what can be moved.
func WorkloadNames() []string { return namesOf(workloads(), containerWorkload.title) }

// LinkNames lists the links.
func LinkNames() []string { return namesOf(links(), namedLink.title) }

func (w containerWorkload) title() string { return w.name }
func (l namedLink) title() string         { return l.name }

func namesOf[T any](all []T, title func(T) string) []string {
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = title(one)
	}
	return names
}

// choose takes the named ones of all, in their own order; all if none is named. A name may be shortened.
func choose[T any](kind string, all []T, title func(T) string, named []string) ([]T, error) {
	if len(named) == 0 {
		return all, nil
	}
	chosen := map[string]bool{}
	for _, name := range named {
		i := slices.IndexFunc(all, func(one T) bool { return name != "" && strings.HasPrefix(title(one), name) })
		if i < 0 {
			return nil, fmt.Errorf("no such %s: %q; there are %s", kind, name, strings.Join(namesOf(all, title), ", "))
		}
		chosen[title(all[i])] = true
	}
	return slices.DeleteFunc(all, func(one T) bool { return !chosen[title(one)] }), nil
}
