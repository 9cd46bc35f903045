package storm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// look is the monitor's interval.
const look = 20 * time.Millisecond

// sustained is in how many consecutive looks two copies have to be seen. The programs' counters find
// shorter overlaps, however short.
const sustained = 3

// youth is how long each look asks for a process's container. Later looks ask ever less often: on a busy
// machine a restore may take longer, and the environment may be memory that has yet to come.
const (
	youth    = time.Second
	askAgain = time.Second
)

// due reports whether the container of a process should be asked for now.
func (p *seenProcess) due(now time.Time) bool {
	age := now.Sub(p.first)
	return p.subject == "" && (age < youth || now.Sub(p.asked) > min(age/10, askAgain))
}

// monitor watches the processes of all containers from outside: in /proc and the cgroups of this machine,
// not through agents and engines.
type monitor struct {
	subjects map[string]*subject // by the mark in the environment of its processes
	known    map[int]*seenProcess
	stop     chan struct{}
	done     chan struct{}

	mu      sync.Mutex
	ran     map[string]time.Time     // when each container was last seen to run
	healed  time.Time                // when the last obstacle was removed; zero: there are obstacles
	nowhere map[string]time.Duration // the longest time that each ran nowhere since then
	double  map[string]string        // first observation of two copies of each
	// number of consecutive looks so far in which each was seen to run twice
	twice map[string]int
	looks int
}

// seenProcess is a process, and its container.
type seenProcess struct {
	first   time.Time
	asked   time.Time   // when its container was last asked for
	subject string      // its mark; empty: of no container
	answer  chan string // the answer, when it comes; nil: there is no question
}

// ask asks for a process's container. Its environment may be memory that has yet to come, or never comes
// because its pager was stopped, and reading it then blocks. So a later look takes a slow answer.
func (p *seenProcess) ask(now time.Time, whose func() string) {
	patience := time.Duration(0)
	if p.answer == nil {
		answer := make(chan string, 1)
		go func() { answer <- whose() }()
		p.answer, p.asked, patience = answer, now, look
	}
	select {
	case p.subject = <-p.answer:
		p.answer = nil
	case <-time.After(patience):
	}
}

func newMonitor(subjects []*subject) *monitor {
	m := &monitor{
		subjects: map[string]*subject{}, known: map[int]*seenProcess{}, stop: make(chan struct{}),
		done: make(chan struct{}),
		ran:  map[string]time.Time{}, nowhere: map[string]time.Duration{}, double: map[string]string{},
		twice: map[string]int{},
	}
	for _, s := range subjects {
		m.subjects[s.mark()] = s
	}
	return m
}

// watch looks repeatedly until it is told to end.
func (m *monitor) watch() {
	defer close(m.done)
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-ticker.C:
			m.look()
		}
	}
}

func (m *monitor) end() {
	close(m.stop)
	<-m.done
}

// look counts running copies. If there are two, it checks the first once more: if that still runs after the
// second was seen to run, both ran at once.
func (m *monitor) look() {
	m.find()
	running := m.running()
	var again map[string][]string
	for _, copies := range running {
		if len(copies) > 1 {
			again = m.running()
		}
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks++
	for mark := range m.subjects {
		m.judge(mark, now, running[mark], again[mark])
	}
}

// judge records an observation of a container.
func (m *monitor) judge(mark string, now time.Time, running, again []string) {
	both := slices.DeleteFunc(slices.Clone(running),
		func(one string) bool { return !slices.Contains(again, one) })
	if m.twice[mark]++; len(both) < 2 {
		m.twice[mark] = 0
	}
	if m.twice[mark] >= sustained && m.double[mark] == "" {
		m.double[mark] = now.Format("15:04:05.000 ") + strings.Join(both, " and ")
	}
	if len(running) > 0 {
		m.ran[mark] = now
	}
	if m.healed.IsZero() {
		return
	}
	since := m.healed
	if m.ran[mark].After(since) {
		since = m.ran[mark]
	}
	m.nowhere[mark] = max(m.nowhere[mark], now.Sub(since))
}

// heals notes whether all obstacles to containers are removed.
func (m *monitor) heals(healed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.healed = time.Time{}
	if healed {
		m.healed = time.Now()
	}
}

// longest returns the longest time that a container ran nowhere after its obstacles were removed.
func (m *monitor) longest() (longest time.Duration, mark string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for one, nowhere := range m.nowhere {
		if nowhere > longest {
			longest, mark = nowhere, one
		}
	}
	return longest, mark
}

// doubles returns the observations of containers that ran twice.
func (m *monitor) doubles() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[string]string{}
	for mark, what := range m.double {
		found[m.subjects[mark].name] = what
	}
	return found
}

// find finds processes, and their containers.
func (m *monitor) find() {
	directory, err := os.Open("/proc")
	if err != nil {
		return
	}
	names, err := directory.Readdirnames(-1)
	_ = directory.Close() // it was only read
	if err != nil {
		return
	}
	now := time.Now()
	there := make(map[int]bool, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		there[pid] = true
		p := m.known[pid]
		if p == nil {
			p = &seenProcess{first: now}
			m.known[pid] = p
		}
		if p.due(now) {
			p.ask(now, func() string { return m.whose(pid) })
		}
	}
	for pid := range m.known {
		if !there[pid] {
			delete(m.known, pid)
		}
	}
}

// whose finds a process's container by its environment.
func (m *monitor) whose(pid int) string {
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	for one := range bytes.SplitSeq(environment, []byte{0}) {
		value, is := strings.CutPrefix(string(one), variable+"=")
		if is && m.subjects[value] != nil {
			return value
		}
	}
	return ""
}

// freezer returns a cgroup directory of a process, which identifies one copy on one node.
func freezer(pid int) string { return freezers(pid)[0] }

// freezers returns the cgroup directories through which a process can be frozen. If both versions are
// mounted there are two, and either suffices.
func freezers(pid int) []string {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return []string{""}
	}
	var first, second []string
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) != 3:
		case fields[1] == "freezer":
			first = append(first, filepath.Join("/sys/fs/cgroup/freezer", fields[2]))
		case fields[1] == "" && isThere("/sys/fs/cgroup/unified"):
			second = append(second, filepath.Join("/sys/fs/cgroup/unified", fields[2]))
		case fields[1] == "":
			second = append(second, filepath.Join("/sys/fs/cgroup", fields[2]))
		}
	}
	if len(first)+len(second) == 0 {
		return []string{""}
	}
	return append(first, second...)
}

// running returns the copies of each container with a running process, in a fixed order.
func (m *monitor) running() map[string][]string {
	pids := make([]int, 0, 32)
	for pid, p := range m.known {
		if p.subject != "" {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	found := map[string][]string{}
	for _, pid := range pids {
		mark, groups := m.known[pid].subject, freezers(pid)
		if !slices.Contains(found[mark], groups[0]) && runs(pid) && !slices.ContainsFunc(groups, frozen) {
			found[mark] = append(found[mark], groups[0])
		}
	}
	return found
}

// runs reports whether a process can run if its cgroup is not frozen: a process that is stopped or about to
// end cannot.
func runs(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "State":
			if strings.ContainsAny(value[:1], "ZXTt") {
				return false
			}
		case "TracerPid":
			if value != "0" {
				return false
			}
		case "SigPnd", "ShdPnd":
			if pending, err := strconv.ParseUint(value, 16, 64); err != nil || pending&killed != 0 {
				return false
			}
		}
	}
	return !ends(pid)
}

// killed is SIGKILL's bit among the pending signals, exiting the flag of a process that ends (PF_EXITING).
const (
	killed  = 1 << 8
	exiting = 0x4
)

// frozen reports whether a cgroup, of either version, is frozen.
func frozen(group string) bool {
	if state, err := os.ReadFile(filepath.Join(group, "freezer.state")); err == nil {
		// FREEZING: none of its processes returns to its program
		return strings.TrimSpace(string(state)) != "THAWED"
	}
	events, err := os.ReadFile(filepath.Join(group, "cgroup.events"))
	return err == nil && strings.Contains(string(events), "frozen 1")
}

// ends reports whether a process is ending, or gone. A killed process is: it has its exit code from then on
// (which recent kernels show), even while it waits for a processor and its signal is no longer pending.
func ends(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 50 {
		return true
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err != nil || flags&exiting != 0 || fields[49] != "0"
}
