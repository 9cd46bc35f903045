package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// machine is a node or a client: something with namespaces and an init.
type machine struct {
	Name    string `json:"name"`
	Number  int    `json:"number"` // from 1, in the addresses
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // the init's start time in clock ticks, to notice a reused PID
	Node    string `json:"node,omitempty"`
}

// wire is a link with its two ends. In a client's wire A is the client.
type wire struct {
	Key   string   `json:"key"` // constant as long as the link exists
	A     string   `json:"a"`
	B     string   `json:"b"`
	Link  Link     `json:"link"`
	Check *Checked `json:"check,omitempty"`
}

// state is the lab's saved state in its run directory. It is a help, not the truth: Down works without it.
type state struct {
	Name      string     `json:"name"`
	Program   string     `json:"program"`
	Helper    string     `json:"helper"`
	Wires     Wires      `json:"wires"`
	Bare      bool       `json:"bare"`
	StateSize int64      `json:"state_size_bytes"`
	Created   time.Time  `json:"created"`
	RelayPID  int        `json:"relay_pid,omitempty"`
	RelayTime uint64     `json:"relay_started,omitempty"`
	Nodes     []*machine `json:"nodes"`
	Clients   []*machine `json:"clients"`
	Links     []*wire    `json:"links"`
}

func loadState(lab string) (*state, error) {
	data, err := os.ReadFile(statePath(lab))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s%s", ErrNoLab, lab, otherLabs(lab))
	}
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", lab, err)
	}
	s := new(state)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("lab %s: %s is damaged: %w; take the lab down and up again", lab,
			statePath(lab), err)
	}
	return s, nil
}

func otherLabs(lab string) string {
	names, err := List()
	if err != nil || len(names) == 0 {
		return " (make one with: godwit-lab up)"
	}
	return fmt.Sprintf(" (there is %s; choose with --name)", strings.Join(names, ", "))
}

// save replaces the file atomically, so that a crash leaves the old or the new description.
func (s *state) save() error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("lab %s: %w", s.Name, err)
	}
	path := statePath(s.Name)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("lab %s: %w", s.Name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("lab %s: %w", s.Name, err)
	}
	return nil
}

// List returns the names of the labs that are up, or half up, on this machine.
func List() ([]string, error) {
	entries, err := os.ReadDir(RunDirectory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() && checkLabName(entry.Name()) == nil {
			names = append(names, entry.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}

// machines returns all nodes and clients.
func (s *state) machines() []*machine { return slices.Concat(s.Nodes, s.Clients) }

func (s *state) machine(name string) (*machine, error) {
	var names []string
	for _, m := range s.machines() {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return nil, fmt.Errorf("%w: %q in lab %s (there is %s)", ErrNoMachine, name, s.Name,
		strings.Join(names, ", "))
}

func (s *state) node(name string) (*machine, error) {
	m, err := s.machine(name)
	if err != nil {
		return nil, err
	}
	if m.Node != "" {
		return nil, fmt.Errorf("%w: %q in lab %s is a client, not a node", ErrNoMachine, name, s.Name)
	}
	return m, nil
}

// wire finds the link between two machines in either order.
func (s *state) wire(a, b string) (*wire, error) {
	for _, name := range []string{a, b} {
		if _, err := s.machine(name); err != nil {
			return nil, err
		}
	}
	for _, w := range s.Links {
		if (w.A == a && w.B == b) || (w.A == b && w.B == a) {
			return w, nil
		}
	}
	return nil, fmt.Errorf("%w: between %s and %s in lab %s", ErrNoLink, a, b, s.Name)
}

func (m *machine) isNode() bool { return m.Node == "" }

// alive reports whether the init that was started still runs.
func (m *machine) alive() bool { return m.PID > 0 && startTime(m.PID) == m.Started && m.Started != 0 }

// startTime returns field 22 of /proc/PID/stat (proc(5)); 0 if there is no such process or it is a zombie.
func startTime(pid int) uint64 {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	// The second field is the name in parentheses and may contain anything; fields are counted from the
	// last parenthesis.
	end := strings.LastIndexByte(string(data), ')')
	if end < 0 {
		return 0
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0
	}
	return ticks
}
