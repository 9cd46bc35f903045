// Package policy decides which containers may come to a node and leave it: from which nodes, to which nodes,
// and with what. A node's administrator writes the policy into a file. The package is pure: the agent reads
// the file and describes each container, and the package decides.
//
// A missing key allows everything, and so does a missing file. An empty list allows nothing.
package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// maxBytes and maxEntries bound a policy file.
const (
	maxBytes   = 64 << 10
	maxEntries = 1024
)

// Policy is the content of the file.
type Policy struct {
	// AcceptFrom lists the nodes from which containers may come, SendTo the nodes to which they may go.
	AcceptFrom *[]string `json:"accept_from,omitempty"`
	SendTo     *[]string `json:"send_to,omitempty"`
	// Engines lists the engines whose containers may move: godwit, docker, podman, containerd, lxc.
	Engines *[]string `json:"engines,omitempty"`
	// HostDirectories lists the directories that an arriving container may mount, with everything below them.
	HostDirectories *[]string `json:"host_directories,omitempty"`
	Modes           *[]string `json:"modes,omitempty"`
	// MaxMemoryBytes and MaxFilesBytes bound an arriving container; 0: no bound.
	MaxMemoryBytes int64 `json:"max_memory_bytes,omitempty"`
	MaxFilesBytes  int64 `json:"max_files_bytes,omitempty"`
	// MaxMemoryPerNodeBytes bounds the memory that containers which come from one node at the same time may
	// reserve here. 0: a single container may take all that is free, several of them three quarters of it.
	MaxMemoryPerNodeBytes int64 `json:"max_memory_per_node_bytes,omitempty"`
}

// Container describes a container to a policy.
type Container struct {
	Node            string // source or destination of the container
	Engine          string
	Mode            string
	HostDirectories []string // mounted by the container: clean, absolute paths
	MemoryBytes     int64
	FilesBytes      int64
}

// Refusal is one reason to refuse a container.
type Refusal struct {
	What string
	Why  string
	Key  string // of the policy file
}

// Parse reads a policy file. Unknown keys are errors: a misspelt one would allow everything.
func Parse(content []byte, modes []string) (Policy, error) {
	if len(content) > maxBytes {
		return Policy{}, fmt.Errorf("the file has %d bytes; the limit is %d", len(content), maxBytes)
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	var p Policy
	if err := decoder.Decode(&p); err != nil {
		return Policy{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Policy{}, errors.New("unexpected content after the end of the policy")
	}
	return p, p.check(modes)
}

func (p Policy) check(modes []string) error {
	if p.MaxMemoryBytes < 0 || p.MaxFilesBytes < 0 || p.MaxMemoryPerNodeBytes < 0 {
		return errors.New("a size must not be negative")
	}
	for key, list := range p.lists() {
		if list == nil {
			continue
		}
		if len(*list) > maxEntries {
			return fmt.Errorf("%s has %d entries; the limit is %d", key, len(*list), maxEntries)
		}
		for _, entry := range *list {
			if entry == "" {
				return fmt.Errorf("%s has an empty entry", key)
			}
			if key == "host_directories" && (!filepath.IsAbs(entry) || filepath.Clean(entry) != entry) {
				return fmt.Errorf("host_directories: %q must be an absolute path "+
					"without \".\", \"..\" or a trailing slash", entry)
			}
			if key == "modes" && !slices.Contains(modes, entry) {
				return fmt.Errorf("modes: unknown mode %q; choose from %s", entry, strings.Join(modes, ", "))
			}
		}
	}
	return nil
}

func (p Policy) lists() map[string]*[]string {
	return map[string]*[]string{
		"accept_from": p.AcceptFrom, "send_to": p.SendTo, "engines": p.Engines,
		"host_directories": p.HostDirectories, "modes": p.Modes,
	}
}

// Arriving lists the reasons to refuse an arriving container.
func (p Policy) Arriving(c Container) []Refusal {
	refusals := p.either(c)
	if !allows(p.AcceptFrom, c.Node) {
		refusals = append(refusals, Refusal{"node " + c.Node,
			"containers from " + c.Node + " are not accepted", "accept_from"})
	}
	for _, directory := range c.HostDirectories {
		allowed := func(d string) bool { return within(directory, d) }
		if p.HostDirectories != nil && !slices.ContainsFunc(*p.HostDirectories, allowed) {
			refusals = append(refusals, Refusal{"host directory " + directory,
				"arriving containers must not mount this directory", "host_directories"})
		}
	}
	if p.MaxMemoryBytes > 0 && c.MemoryBytes > p.MaxMemoryBytes {
		refusals = append(refusals, Refusal{"memory",
			fmt.Sprintf("its memory has %d bytes; the limit is %d", c.MemoryBytes, p.MaxMemoryBytes),
			"max_memory_bytes"})
	}
	if p.MaxFilesBytes > 0 && c.FilesBytes > p.MaxFilesBytes {
		refusals = append(refusals, Refusal{"files",
			fmt.Sprintf("its files have %d bytes; the limit is %d", c.FilesBytes, p.MaxFilesBytes),
			"max_files_bytes"})
	}
	return refusals
}

// Leaving lists the reasons to keep a container from leaving.
func (p Policy) Leaving(c Container) []Refusal {
	refusals := p.either(c)
	if !allows(p.SendTo, c.Node) {
		refusals = append(refusals, Refusal{"node " + c.Node,
			"containers must not be sent to " + c.Node, "send_to"})
	}
	return refusals
}

// either lists the reasons that apply in both directions.
func (p Policy) either(c Container) (refusals []Refusal) {
	if !allows(p.Engines, c.Engine) {
		refusals = append(refusals, Refusal{"engine " + c.Engine,
			"this engine's containers must not move", "engines"})
	}
	if !allows(p.Modes, c.Mode) {
		refusals = append(refusals, Refusal{"mode " + c.Mode,
			"containers must not move in this mode", "modes"})
	}
	return refusals
}

// Refused returns those of the given modes in which no container may come or leave.
func (p Policy) Refused(modes []string) (refused []string) {
	for _, mode := range modes {
		if !allows(p.Modes, mode) {
			refused = append(refused, mode)
		}
	}
	return refused
}

// Describe lists what the policy restricts, in words; it is empty if the policy restricts nothing.
func (p Policy) Describe() []string {
	var lines []string
	for key, list := range p.lists() {
		if list != nil && len(*list) == 0 {
			lines = append(lines, key+": none")
		} else if list != nil {
			lines = append(lines, key+": "+strings.Join(*list, ", "))
		}
	}
	if p.MaxMemoryBytes > 0 {
		lines = append(lines, fmt.Sprintf("max_memory_bytes: %d", p.MaxMemoryBytes))
	}
	if p.MaxFilesBytes > 0 {
		lines = append(lines, fmt.Sprintf("max_files_bytes: %d", p.MaxFilesBytes))
	}
	if p.MaxMemoryPerNodeBytes > 0 {
		lines = append(lines, fmt.Sprintf("max_memory_per_node_bytes: %d", p.MaxMemoryPerNodeBytes))
	}
	slices.Sort(lines)
	return lines
}

// allows reports whether a list allows an entry. A missing list allows every entry, and every list allows
// an unknown (empty) entry.
func allows(list *[]string, entry string) bool {
	return list == nil || entry == "" || slices.Contains(*list, entry)
}

func within(path, directory string) bool {
	return path == directory || directory == "/" || strings.HasPrefix(path, directory+"/")
}
