package lab

import (
	"path/filepath"
	"time"
)

// Status is the current status of a lab.
type Status struct {
	Name    string         `json:"name"`
	Created time.Time      `json:"created"`
	Program string         `json:"program"`
	Wires   Wires          `json:"wires"`
	Relay   *ProcessStatus `json:"relay,omitempty"`
	Nodes   []NodeStatus   `json:"nodes"`
	Clients []ClientStatus `json:"clients"`
	Links   []LinkStatus   `json:"links"`
}

// ProcessStatus reports whether a process of the lab runs.
type ProcessStatus struct {
	PID     int  `json:"pid"`
	Running bool `json:"running"`
}

// NodeStatus is the status of a node.
type NodeStatus struct {
	Name    string        `json:"name"`
	Address string        `json:"address"`
	Init    ProcessStatus `json:"init"`
	Agent   ProcessStatus `json:"agent"`
	// on the machine, unless the node's state has a fixed size
	StateDirectory string `json:"state_directory"`
	AgentLog       string `json:"agent_log"`
}

// ClientStatus is the status of a client.
type ClientStatus struct {
	Name    string        `json:"name"`
	Node    string        `json:"node"`
	Address string        `json:"address"`
	Init    ProcessStatus `json:"init"`
}

// LinkStatus is the status of a link.
type LinkStatus struct {
	A             string         `json:"a"`
	B             string         `json:"b"`
	Bandwidth     int64          `json:"bandwidth_bits_per_second"` // 0 is unlimited
	RTTSeconds    float64        `json:"rtt_seconds"`
	JitterSeconds float64        `json:"jitter_seconds"`
	LossRatio     float64        `json:"loss_ratio"`
	Down          bool           `json:"down"`
	Measured      *MeasureStatus `json:"measured,omitempty"`
	There         *Counters      `json:"there,omitempty"` // from A to B
	Back          *Counters      `json:"back,omitempty"`
}

// MeasureStatus is the measurement from when the link came up.
type MeasureStatus struct {
	There      int64    `json:"there_bits_per_second"`
	Back       int64    `json:"back_bits_per_second"`
	RTTSeconds float64  `json:"rtt_seconds"`
	OK         bool     `json:"ok"`
	Problems   []string `json:"problems,omitempty"`
}

// Link returns the link of the status.
func (s LinkStatus) Link() Link {
	return Link{
		BandwidthBitsPerSecond: s.Bandwidth, Loss: s.LossRatio, Down: s.Down,
		RTT: seconds(s.RTTSeconds), Jitter: seconds(s.JitterSeconds),
	}
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}

// Status returns the status of the lab. A dead process is reported as not running; that is no error.
func (l *Lab) Status() (Status, error) {
	s, err := loadState(l.name)
	if err != nil {
		return Status{}, err
	}
	status := Status{
		Name: s.Name, Created: s.Created, Program: s.Program, Wires: s.Wires,
		Nodes: []NodeStatus{}, Clients: []ClientStatus{}, Links: []LinkStatus{},
	}
	if s.Wires == WiresRelay && s.RelayPID != 0 {
		status.Relay = &ProcessStatus{PID: s.RelayPID, Running: s.relayAlive()}
	}
	for _, m := range s.Nodes {
		agent := s.agentOf(m, isAgent)
		node := NodeStatus{
			Name: m.Name, Address: m.address().String(), Init: ProcessStatus{PID: m.PID, Running: m.alive()},
			Agent: ProcessStatus{PID: agent, Running: agent != 0}, AgentLog: l.AgentLog(m.Name),
			StateDirectory: filepath.Join(StateDirectory, s.Name, m.Name),
		}
		status.Nodes = append(status.Nodes, node)
	}
	for _, m := range s.Clients {
		status.Clients = append(status.Clients, ClientStatus{
			Name: m.Name, Node: m.Node, Address: m.address().String(),
			Init: ProcessStatus{PID: m.PID, Running: m.alive()},
		})
	}
	for _, w := range s.Links {
		status.Links = append(status.Links, s.linkStatus(w))
	}
	return status, nil
}

func (s *state) linkStatus(w *wire) LinkStatus {
	status := LinkStatus{
		A: w.A, B: w.B, Bandwidth: w.Link.BandwidthBitsPerSecond, RTTSeconds: w.Link.RTT.Seconds(),
		JitterSeconds: w.Link.Jitter.Seconds(), LossRatio: w.Link.Loss, Down: w.Link.Down,
	}
	if c := w.Check; c != nil {
		status.Measured = &MeasureStatus{
			There: c.BandwidthThere, Back: c.BandwidthBack, RTTSeconds: c.RTT.Seconds(), OK: c.OK,
			Problems: c.Problems,
		}
	}
	ends, err := s.ends(w)
	if err != nil {
		return status
	}
	if both, err := s.wiring().counters(w, ends); err == nil {
		status.There, status.Back = &both[0], &both[1]
	}
	return status
}
