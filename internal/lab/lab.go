package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Errors that callers may distinguish.
var (
	ErrNoLab     = errors.New("no such lab")
	ErrNoMachine = errors.New("no such node or client")
	ErrNoLink    = errors.New("no such link")
	ErrExists    = errors.New("exists already")
)

// Lab is a running lab. Its methods may be called concurrently, even from several processes.
type Lab struct{ name string }

// Name of the lab.
func (l *Lab) Name() string { return l.name }

// Open finds a running lab.
func Open(name string) (*Lab, error) {
	if err := checkLabName(name); err != nil {
		return nil, err
	}
	if _, err := loadState(name); err != nil {
		return nil, err
	}
	return &Lab{name: name}, nil
}

// Up makes a lab and starts its agents. If anything fails, nothing is left of the lab.
func Up(ctx context.Context, config Config) (*Lab, error) {
	if config.Name == "" {
		config.Name = DefaultName
	}
	if err := config.validate(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("a lab needs root to create namespaces and cgroups; run godwit-lab as root")
	}
	var err error
	if config.Helper, err = findHelper(config.Helper); err != nil {
		return nil, err
	}
	if config.Program, err = FindProgram(config.Program); err != nil {
		return nil, err
	}
	l := &Lab{name: config.Name}
	if err := l.claim(config); err != nil {
		return nil, err
	}
	if err := l.build(ctx, config); err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s: %w", config.Name, err), Down(config.Name))
	}
	return l, nil
}

// findHelper returns the given program or, if empty, this program. Nodes run it as init, relay and workloads.
func findHelper(program string) (string, error) {
	if program != "" {
		return existing(program)
	}
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return own, nil
}

// FindProgram returns the given godwit program or, if empty, the godwit beside this program or in PATH.
func FindProgram(program string) (string, error) {
	if program != "" {
		return existing(program)
	}
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(own), programName)
	if file, err := os.Stat(beside); err == nil && file.Mode().IsRegular() {
		return beside, nil
	}
	if program, err = exec.LookPath(programName); err != nil {
		return "", fmt.Errorf("cannot find the program godwit: not at %s and not in PATH; build it with: "+
			"make build",
			beside)
	}
	return existing(program)
}

func existing(program string) (string, error) {
	absolute, err := filepath.Abs(program)
	if err != nil {
		return "", fmt.Errorf("program %s: %w", program, err)
	}
	if _, err := os.Stat(absolute); err != nil {
		return "", fmt.Errorf("program: %w", err)
	}
	return absolute, nil
}

// claim reserves the name, so that two labs of one name are not made in parallel.
func (l *Lab) claim(config Config) error {
	unlockAll, err := lockLabs()
	if err != nil {
		return err
	}
	defer unlockAll()
	unlock, err := lockLab(l.name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Mkdir(runDirectory(l.name), 0o755); err != nil {
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("lab %s %w, perhaps left by a crash; take it down first: godwit-lab down "+
				"--name %s",
				l.name, ErrExists, l.name)
		}
		return fmt.Errorf("lab %s: %w", l.name, err)
	}
	if err := os.MkdirAll(filepath.Join(StateDirectory, l.name), 0o755); err != nil {
		return fmt.Errorf("lab %s: %w", l.name, err)
	}
	s := &state{
		Name: config.Name, Program: config.Program, Helper: config.Helper, Wires: config.Wires,
		Bare:      config.Bare,
		StateSize: config.StateSizeBytes, Created: time.Now(),
	}
	return s.save()
}

// update changes the lab's saved state. Only one process does so at a time.
func (l *Lab) update(change func(*state) error) error {
	unlock, err := lockLab(l.name)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := loadState(l.name)
	if err != nil {
		return err
	}
	if err := change(s); err != nil {
		return err
	}
	return s.save()
}

func lockPath(name string) string { return filepath.Join(RunDirectory, "."+name+".lock") }

func lockLab(name string) (unlock func(), err error) { return lockFile(lockPath(name)) }

// lockLabs is held while a lab is added, and while the common files of labs are removed.
func lockLabs() (unlock func(), err error) { return lockFile(RunDirectory + ".lock") }

func (l *Lab) build(ctx context.Context, config Config) error {
	report := config.Progress
	if report == nil {
		report = func(string) {}
	}
	if err := l.buildNodes(ctx, config, report); err != nil {
		return err
	}
	if err := l.buildLinks(config, report); err != nil {
		return err
	}
	if !config.NoCheck {
		if err := l.checkAll(ctx, report); err != nil {
			return err
		}
	}
	if config.Bare {
		return nil
	}
	return l.startAgents(ctx, config, report)
}

func (l *Lab) buildNodes(ctx context.Context, config Config, report func(string)) error {
	for number := 1; number <= config.Nodes; number++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		m := &machine{Name: nodeName(number), Number: number}
		err := l.update(func(s *state) error {
			s.Nodes = append(s.Nodes, m)
			return s.startMachine(m)
		})
		if err != nil {
			return err
		}
		report(fmt.Sprintf("node %s is up at %s", m.Name, nodeAddress(number)))
	}
	return nil
}

func (l *Lab) buildLinks(config Config, report func(string)) error {
	err := l.update(func(s *state) error {
		if err := s.chooseWires(); err != nil {
			return err
		}
		for i, a := range s.Nodes {
			for _, b := range s.Nodes[i+1:] {
				w := &wire{Key: a.Name + "-" + b.Name, A: a.Name, B: b.Name, Link: config.Link}
				if err := s.connect(w, a, b); err != nil {
					return err
				}
				s.Links = append(s.Links, w)
			}
		}
		if len(s.Nodes) == 1 {
			return onlyAddress(s.Nodes[0])
		}
		return nil
	})
	if err == nil && config.Nodes > 1 {
		report(fmt.Sprintf("every two nodes are linked: %s", config.Link))
	}
	return err
}

// chooseWires chooses wires that the machine supports and starts the relay if needed.
func (s *state) chooseWires() error {
	netem := s.Wires != WiresRelay && haveNetem(s.Nodes[0].PID)
	switch {
	case s.Wires == WiresNetem && !netem:
		return errors.New("this kernel has no netem (modprobe sch_netem); use --wires relay")
	case netem:
		s.Wires = WiresNetem
		return nil
	case !exists(tunDevice):
		return fmt.Errorf("the kernel has neither netem nor %s; try modprobe sch_netem or modprobe tun",
			tunDevice)
	}
	s.Wires = WiresRelay
	return s.startRelay()
}
