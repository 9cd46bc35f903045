package idle

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// measureIdle takes the samples.
func measureIdle(ctx context.Context, s *testbed.Suite, config Config, peers *idlePeers,
	to *results.Series) error {
	settle, intervals, interval := config.timing()
	if err := testbed.Pause(ctx, settle); err != nil {
		return err
	}
	before, err := lookIdle(s, peers)
	if err != nil {
		return err
	}
	for n := range intervals {
		if err := testbed.Pause(ctx, interval); err != nil {
			return err
		}
		now, err := lookIdle(s, peers)
		if err != nil {
			return err
		}
		to.Add(now.since(before))
		before = now
		s.Say("interval %d of %d", n+1, intervals)
	}
	return nil
}

// idleLook is the usage up to a point in time.
type idleLook struct {
	at                    time.Time
	agent, device, docker float64 // seconds of a processor
	memory                int64
	count                 idleCount
}

func (l idleLook) since(before idleLook) []results.Measurement {
	took := l.at.Sub(before.at).Seconds()
	hellos := l.count.Sent + l.count.Answered - before.count.Sent - before.count.Answered
	failed := l.count.Failed - before.count.Failed
	measured := []results.Measurement{
		{metricAgentBusy, (l.agent - before.agent) / took},
		{metricDeviceBusy, (l.device - before.device) / took},
		{metricDockerBusy, (l.docker - before.docker) / took},
		{metricAgentHeld, float64(l.memory)},
	}
	if hellos+failed > 0 {
		measured = append(measured,
			results.Measurement{metricUnanswered, float64(failed) / float64(hellos+failed)})
	}
	if hellos > 0 {
		bytes := l.count.Bytes - before.count.Bytes
		measured = append(measured, results.Measurement{metricHello, float64(bytes) / float64(hellos)})
	}
	return measured
}

func lookIdle(s *testbed.Suite, peers *idlePeers) (look idleLook, err error) {
	if look.count, err = peers.count(); err != nil {
		return look, err
	}
	root, err := s.Bed.Path(testbed.Nodes[0], "/proc")
	if err != nil {
		return look, err
	}
	processes, err := filepath.Glob(filepath.Join(root, "[0-9]*"))
	if err != nil {
		return look, err
	}
	look.at = time.Now()
	agents := 0
	for _, process := range processes {
		command, err := os.ReadFile(filepath.Join(process, "cmdline"))
		if err != nil {
			continue // it has ended
		}
		switch args := strings.Split(string(command), "\x00"); {
		case isCommand(args, testbed.Program, "agent"):
			agents++
			look.agent += usedBy(process)
			text, _ := os.ReadFile(filepath.Join(process, "status"))
			if look.memory, err = testbed.Kibibytes(string(text), "VmRSS"); err != nil {
				return look, fmt.Errorf("memory of the agent: %w", err)
			}
		case isCommand(args, testbed.Program, "wireguard-device"):
			look.device += usedBy(process)
		case isCommand(args, "dockerd"), isCommand(args, "containerd"):
			look.docker += usedBy(process)
		}
	}
	if agents != 1 {
		return look, fmt.Errorf("node %s has %d agents", testbed.Nodes[0], agents)
	}
	return look, nil
}

// isCommand reports whether a command line begins with these words; the program may be in any directory.
func isCommand(args []string, begin ...string) bool {
	if len(args) < len(begin) || filepath.Base(args[0]) != begin[0] {
		return false
	}
	return len(begin) < 2 || args[1] == begin[1]
}

// usedBy returns the processor time of a process, and of the children that it has waited for: 0 if it has
// ended.
func usedBy(process string) float64 {
	data, err := os.ReadFile(filepath.Join(process, "stat"))
	if err != nil {
		return 0
	}
	// proc(5): the name, in parentheses, is the second field and may contain any characters; utime, stime,
	// cutime and cstime are fields 14 to 17.
	_, rest, _ := strings.Cut(string(data[max(0, strings.LastIndexByte(string(data), ')')):]), " ")
	fields := strings.Fields(rest)
	const first, ticksPerSecond = 14 - 3, 100 // USER_HZ
	if len(fields) < first+4 {
		return 0
	}
	var ticks float64
	for _, field := range fields[first : first+4] {
		n, _ := strconv.ParseFloat(field, 64) // the kernel writes numbers
		ticks += n
	}
	return ticks / ticksPerSecond
}
