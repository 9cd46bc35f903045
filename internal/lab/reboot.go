package lab

import (
	"errors"
	"fmt"
	"slices"
)

// Reboot simulates a power failure of a node and its return: all its processes are gone, and all data that
// is not on its disk. Its links and clients are attached again; its agent is not started.
func (l *Lab) Reboot(node string) error {
	return l.update(func(s *state) error {
		m, err := s.node(node)
		if err != nil {
			return err
		}
		if s.StateSize > 0 {
			return fmt.Errorf("reboot %s: the disks of lab %s are in memory, and would be lost", node, s.Name)
		}
		if err := s.reboot(m); err != nil {
			return fmt.Errorf("reboot %s: %w", node, err)
		}
		return nil
	})
}

func (s *state) reboot(m *machine) error {
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	links := slices.DeleteFunc(slices.Clone(s.Links),
		func(w *wire) bool { return w.A != m.Name && w.B != m.Name })
	for _, w := range links {
		if err := s.wiring().detach(w); err != nil {
			return err
		}
	}
	if err := removeMachine(s.Name, m.Name, cgroups); err != nil {
		return err
	}
	if err := s.startMachine(m); err != nil {
		return err
	}
	for _, w := range links {
		if err := s.reattach(w); err != nil {
			return err
		}
	}
	return s.routeClients()
}

// reattach makes a link again whose interfaces are gone.
func (s *state) reattach(w *wire) error {
	a, errA := s.machine(w.A)
	b, errB := s.machine(w.B)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	if a.isNode() {
		return s.connect(w, a, b)
	}
	return s.attachClient(w, a, b)
}

func (s *state) routeClients() error {
	for _, client := range s.Clients {
		at, err := s.node(client.Node)
		if err == nil {
			err = s.routeClient(client, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
