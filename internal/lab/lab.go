package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	if err := claim(config); err != nil {
		return nil, err
	}
	b := builder{lab: &Lab{name: config.Name}, config: config, report: config.Progress}
	if b.report == nil {
		b.report = func(string) {}
	}
	if err := b.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s: %w", config.Name, err), Down(config.Name))
	}
	return b.lab, nil
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
