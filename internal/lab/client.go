package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// DefaultClient is the client that commands use by default.
const DefaultClient = "client"

// maxClients follows from the clients' addresses, 10.99.K.2.
const maxClients = 254

// Client makes a client and attaches it to a node. The zero Link is as fast as the machine; others are
// shaped.
func (l *Lab) Client(name, node string, link Link) error {
	if err := errors.Join(checkClientName(name), link.validate()); err != nil {
		return err
	}
	return l.update(func(s *state) error {
		at, err := s.node(node)
		if err != nil {
			return err
		}
		if m, err := s.machine(name); err == nil {
			return fmt.Errorf("client %s %w, attached to %s; to move it add --move", name, ErrExists, m.Node)
		}
		client := &machine{Name: name, Number: s.freeClientNumber(), Node: at.Name}
		if client.Number > maxClients {
			return fmt.Errorf("lab %s has %d clients, and more have no address", s.Name, maxClients)
		}
		s.Clients = append(s.Clients, client)
		if err := s.startMachine(client); err != nil {
			return errors.Join(err, s.discard(client))
		}
		w := &wire{Key: name, A: name, B: node, Link: link}
		s.Links = append(s.Links, w)
		if err := s.attachClient(w, client, at); err != nil {
			return errors.Join(fmt.Errorf("client %s: %w", name, err), s.discard(client))
		}
		return nil
	})
}

// freeClientNumber returns the lowest free number of a client.
func (s *state) freeClientNumber() int {
	for number := 1; ; number++ {
		taken := func(m *machine) bool { return m.Number == number }
		if !slices.ContainsFunc(s.Clients, taken) {
			return number
		}
	}
}

func (s *state) attachClient(w *wire, client, at *machine) error {
	ends, err := s.ends(w)
	if err != nil {
		return err
	}
	if err := s.wiring().attach(w, ends); err != nil {
		return err
	}
	if err := bringUp(ends[0], clientAddress(client.Number), 24, netip.Addr{}, 0, w.Link); err != nil {
		return err
	}
	if err := bringUp(ends[1], gatewayAddress(client.Number), 24, netip.Addr{}, 0, w.Link); err != nil {
		return err
	}
	return errors.Join(s.wiring().set(w, ends), defaultRoute(client), s.routeClient(client, at))
}

// MoveClient attaches a client to another node. The client keeps its address and its connections.
func (l *Lab) MoveClient(name, node string) error {
	return l.update(func(s *state) error {
		to, err := s.node(node)
		if err != nil {
			return err
		}
		client, err := s.machine(name)
		if err != nil {
			return err
		}
		if client.isNode() {
			return fmt.Errorf("%w: %q in lab %s is a node, not a client", ErrNoMachine, name, s.Name)
		}
		if client.Node == node {
			return fmt.Errorf("client %s is attached to %s already", name, node)
		}
		if err := s.moveClient(client, to); err != nil {
			return fmt.Errorf("move client %s to %s: %w", name, node, err)
		}
		return nil
	})
}

func (s *state) moveClient(client, to *machine) error {
	w, err := s.wire(client.Name, client.Node)
	if err != nil {
		return err
	}
	before, err := s.ends(w)
	if err != nil {
		return err
	}
	target := relayEnd{PID: to.PID, Interface: interfaceTo(client)}
	if err := s.wiring().move(w, before[1], target); err != nil {
		return err
	}
	w.B, client.Node = to.Name, to.Name
	if err := dropClientRoute(to, client); err != nil {
		return err
	}
	if err := bringUp(target, gatewayAddress(client.Number), 24, netip.Addr{}, 0, w.Link); err != nil {
		return err
	}
	after, err := s.ends(w)
	if err != nil {
		return err
	}
	// A client's interface that was briefly without its other end may have lost its route.
	return errors.Join(s.wiring().set(w, after), defaultRoute(client), s.routeClient(client, to))
}

// RemoveClient ends a client with all its processes.
func (l *Lab) RemoveClient(name string) error {
	return l.update(func(s *state) error {
		client, err := s.machine(name)
		if err != nil {
			return err
		}
		if client.isNode() {
			return fmt.Errorf("%w: %q in lab %s is a node, not a client", ErrNoMachine, name, s.Name)
		}
		return s.discard(client)
	})
}

// discard removes all parts of a client that it finds.
func (s *state) discard(client *machine) error {
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	var detached error
	for _, w := range s.Links {
		if w.A == client.Name {
			detached = s.wiring().detach(w)
		}
	}
	s.Links = slices.DeleteFunc(s.Links, func(w *wire) bool { return w.A == client.Name })
	s.Clients = slices.DeleteFunc(s.Clients, func(m *machine) bool { return m == client })
	for _, node := range s.Nodes {
		if node.alive() && node.Name != client.Node {
			detached = errors.Join(detached, dropClientRoute(node, client))
		}
	}
	return errors.Join(removeMachine(s.Name, client.Name, cgroups), detached, s.save())
}

func removeMachine(lab, name string, cgroups []hierarchy) error {
	ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
	defer cancel()
	if err := killAll(ctx, lab, name, cgroups); err != nil {
		return err
	}
	for _, h := range cgroups {
		if err := removeCgroup(ctx, h.path(lab, name)); err != nil {
			return err
		}
	}
	return removeTree(machineDirectory(lab, name))
}
