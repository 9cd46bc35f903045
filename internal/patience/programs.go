package patience

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// leastShare is how much of one processor a program that works uses at least, in hundredths. A daemon that
// waits for something uses less; a daemon that works with a twentieth of a processor uses more.
const leastShare = 1

// Programs looks for processes whose names begin with one of these, this process aside: that works all the
// time. They move as long as they use a hundredth of a processor together, or one of their threads waits
// for a processor. Whom they work for cannot be seen: while they are busy for somebody else, only the hard
// bound ends the wait. The first look finds them, and is a sign: most waits are over before, and cost no
// look at all processes.
func Programs(names ...string) Signs {
	p := &programs{wants: func(name string) bool {
		return slices.ContainsFunc(names, func(wanted string) bool { return strings.HasPrefix(name, wanted) })
	}}
	return p.moved
}

// Program is Programs for those of exactly this name: not for "containerd-shim" where containerd is asked.
func Program(name string) Signs {
	p := &programs{wants: func(found string) bool { return found == name }}
	return p.moved
}

type programs struct {
	wants func(name string) bool
	known map[string]int64 // processor time of each process, by its number and start
	at    time.Time        // of the last sign; zero: nobody has looked yet
	used  time.Duration    // since at
	ready bool             // a thread wanted a processor when it was looked at
}

func (p *programs) moved() bool {
	now, first := time.Now(), p.at.IsZero()
	p.used += p.gained()
	if !first && !p.ready && p.used < now.Sub(p.at)*leastShare/100 {
		return false
	}
	p.at, p.used = now, 0
	return true
}

// gained is the processor time that the processes have used since the last call.
func (p *programs) gained() time.Duration {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	own := fmt.Sprintf("/proc/%d/stat", os.Getpid())
	ticks, known := int64(0), make(map[string]int64, len(p.known))
	p.ready = false
	for _, path := range stats {
		line, err := os.ReadFile(path)
		if err != nil || path == own {
			continue // it has ended, or is this one
		}
		name, rest := splitStat(line)
		if rest == nil || !p.wants(name) {
			continue
		}
		key := path + " " + string(rest[19])
		known[key] = number(rest[11]) + number(rest[12]) // utime, stime: proc(5)
		ticks += max(known[key]-p.known[key], 0)
		p.ready = p.ready || wantsProcessor(filepath.Dir(path))
	}
	p.known = known
	const perSecond = 100 // USER_HZ on every architecture that this program runs on
	return time.Duration(ticks) * time.Second / perSecond
}

// wantsProcessor tells whether a thread of a process runs, or would run if it were let: the machine may be
// busy, or the process may have used up what its cgroup allows.
func wantsProcessor(process string) bool {
	stats, _ := filepath.Glob(process + "/task/*/stat") // the pattern is right
	for _, path := range stats {
		line, err := os.ReadFile(path)
		if _, rest := splitStat(line); err == nil && rest != nil && string(rest[0]) == "R" {
			return true
		}
	}
	return false
}

// splitStat takes a line of /proc/PID/stat apart: the name, and the fields from the state on.
func splitStat(line []byte) (name string, rest [][]byte) {
	begin, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if begin < 0 || end < begin {
		return "", nil
	}
	if rest = bytes.Fields(line[end+1:]); len(rest) < 20 {
		return "", nil
	}
	return string(line[begin+1 : end]), rest
}

func number(field []byte) int64 {
	n, _ := strconv.ParseInt(string(field), 10, 64) // the kernel wrote it
	return n
}
