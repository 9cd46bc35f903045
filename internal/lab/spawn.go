package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// upTimeout is how long a machine's init may take.
const upTimeout = 20 * time.Second

const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS |
	unix.CLONE_NEWIPC

// startMachine makes a node's or client's cgroups and namespaces and returns when its init reports that it
// is up.
func (s *state) startMachine(m *machine) error {
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range cgroups {
		if err := h.create(s.Name, m.Name); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	spec := initSpec{
		Lab: s.Name, Machine: m.Name, Program: s.Program, Helper: s.Helper,
		Node: m.isNode(), StateSize: s.StateSize, Cgroups: cgroups,
	}
	if spec.Mounted, err = seenInNodes(cgroups); err != nil {
		return err
	}
	if err := prepareDirectories(spec); err != nil {
		return err
	}
	return s.spawnInit(m, cgroups)
}

func prepareDirectories(spec initSpec) error {
	if err := os.MkdirAll(machineDirectory(spec.Lab, spec.Machine), 0o755); err != nil {
		return fmt.Errorf("%s: %w", spec.Machine, err)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(specPath(spec.Lab, spec.Machine), data, 0o600); err != nil {
		return fmt.Errorf("%s: %w", spec.Machine, err)
	}
	if !spec.Node {
		return nil
	}
	if err := os.MkdirAll(nodeStatePath(spec.Lab, spec.Machine), 0o755); err != nil {
		return fmt.Errorf("%s: %w", spec.Machine, err)
	}
	return makeMountPoints()
}

func (s *state) spawnInit(m *machine, cgroups []hierarchy) error {
	log, err := os.Create(filepath.Join(machineDirectory(s.Name, m.Name), "init.log"))
	if err != nil {
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	defer log.Close()
	listen, tell, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	defer listen.Close()
	cmd := exec.Command(s.Helper, "lab-init", s.Name, m.Name, "enter")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{tell}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: namespaces}
	err = startInCgroup(cmd, cgroups, s.Name, m.Name)
	_ = tell.Close()
	if err != nil {
		return fmt.Errorf("start the init of %s: %w", m.Name, err)
	}
	m.PID, m.Started = cmd.Process.Pid, startTime(cmd.Process.Pid)
	return awaitReady(listen, m.Name)
}

// startInCgroup starts a program inside its version 2 cgroup if there is one, so that a crash never leaves
// a process outside of the lab's cgroups. This process reaps it while it lives.
func startInCgroup(cmd *exec.Cmd, cgroups []hierarchy, lab, machine string) error {
	for _, h := range cgroups {
		if !h.V2 {
			continue
		}
		dir, err := os.Open(h.path(lab, machine))
		if err != nil {
			return err
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // its end is noticed elsewhere
	return nil
}

func awaitReady(listen *os.File, name string) error {
	if err := listen.SetReadDeadline(time.Now().Add(upTimeout)); err != nil {
		return err
	}
	said, err := io.ReadAll(io.LimitReader(listen, 4096))
	if err != nil {
		return fmt.Errorf("%s did not come up in %s: %w", name, upTimeout, err)
	}
	if string(said) != ready {
		reason := strings.TrimSpace(string(said))
		if reason == "" {
			reason = "its init ended"
		}
		return fmt.Errorf("%s did not come up: %s", name, reason)
	}
	return nil
}

// startRelay starts the process that carries the packets of the lab's links.
func (s *state) startRelay() error {
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range cgroups {
		if err := h.create(s.Name, relayName); err != nil {
			return err
		}
	}
	log, err := os.Create(filepath.Join(runDirectory(s.Name), "relay.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.Helper, "lab-relay", s.Name)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNET}
	if err := startInCgroup(cmd, cgroups, s.Name, relayName); err != nil {
		return fmt.Errorf("start the relay: %w", err)
	}
	s.RelayPID, s.RelayTime = cmd.Process.Pid, startTime(cmd.Process.Pid)
	return awaitSocket(relaySocket(s.Name), upTimeout, func() bool { return s.relayAlive() })
}

// relayName is the relay's cgroup. It cannot be the name of a client or node: it has a capital letter.
const relayName = "Relay"

func (s *state) relayAlive() bool {
	return s.RelayPID > 0 && s.RelayTime != 0 && startTime(s.RelayPID) == s.RelayTime
}
