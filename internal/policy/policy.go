// Package policy decides which containers a node's administrator allows to come and to leave: from
// which nodes, to which nodes, and with what. It is pure: the agent reads the file and describes each
// container, and the package decides.
//
// A key that the file does not have allows everything, and so does a missing file. An empty list
// allows nothing.
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
	// AcceptFrom are the nodes from which containers may come, SendTo those to which they may go.
	AcceptFrom *[]string `json:"accept_from,omitempty"`
	SendTo     *[]string `json:"send_to,omitempty"`
	// Engines are those whose containers may move: godwit, docker, podman, containerd, lxc.
	Engines *[]string `json:"engines,omitempty"`
	// HostDirectories are those that a container that comes may mount, each with all below it.
	HostDirectories *[]string `json:"host_directories,omitempty"`
	Modes           *[]string `json:"modes,omitempty"`
	// MaxMemoryBytes and MaxFilesBytes bound a container that comes; 0: no bound.
	MaxMemoryBytes int64 `json:"max_memory_bytes,omitempty"`
	MaxFilesBytes  int64 `json:"max_files_bytes,omitempty"`
}

// Container is what a policy looks at.
type Container struct {
	Node            string // from which it comes, or to which it goes
	Engine          string
	Mode            string
	HostDirectories []string // that it mounts: clean, absolute paths
	MemoryBytes     int64
	FilesBytes      int64
}

// Refusal is one reason for which the policy refuses a container.
type Refusal struct {
	What string
	Why  string
	Key  string // of the policy file
}

// Parse reads a policy file. Unknown keys are errors: a misspelt one would allow everything.
func Parse(content []byte, modes []string) (Policy, error) {
	if len(content) > maxBytes {
		return Policy{}, fmt.Errorf("%d bytes; at most %d make sense", len(content), maxBytes)
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	var p Policy
	if err := decoder.Decode(&p); err != nil {
		return Policy{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Policy{}, errors.New("there is something behind the end of the policy")
	}
	return p, p.check(modes)
}

func (p Policy) check(modes []string) error {
	if p.MaxMemoryBytes < 0 || p.MaxFilesBytes < 0 {
		return errors.New("a size must not be negative")
	}
	for key, list := range p.lists() {
		if list == nil {
			continue
		}
		if len(*list) > maxEntries {
			return fmt.Errorf("%s has %d entries; at most %d make sense", key, len(*list), maxEntries)
		}
		for _, entry := range *list {
			if entry == "" {
				return fmt.Errorf("%s has an empty entry", key)
			}
			if key == "host_directories" && (!filepath.IsAbs(entry) || filepath.Clean(entry) != entry) {
				return fmt.Errorf("host_directories: %q must be an absolute path without \".\", \"..\" or a slash at its end", entry)
			}
			if key == "modes" && !slices.Contains(modes, entry) {
				return fmt.Errorf("modes: %q is none of %s", entry, strings.Join(modes, ", "))
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

// Arriving lists the reasons to refuse a container that is to come.
func (p Policy) Arriving(c Container) []Refusal {
	refusals := p.either(c)
	if !allows(p.AcceptFrom, c.Node) {
		refusals = append(refusals, Refusal{"node " + c.Node, "containers from it are not accepted", "accept_from"})
	}
	for _, directory := range c.HostDirectories {
		if p.HostDirectories != nil && !slices.ContainsFunc(*p.HostDirectories, func(d string) bool { return within(directory, d) }) {
			refusals = append(refusals, Refusal{"host directory " + directory, "containers that come must not mount it", "host_directories"})
		}
	}
	if p.MaxMemoryBytes > 0 && c.MemoryBytes > p.MaxMemoryBytes {
		refusals = append(refusals, Refusal{"memory",
			fmt.Sprintf("the container has %d bytes, and at most %d are accepted", c.MemoryBytes, p.MaxMemoryBytes), "max_memory_bytes"})
	}
	if p.MaxFilesBytes > 0 && c.FilesBytes > p.MaxFilesBytes {
		refusals = append(refusals, Refusal{"files",
			fmt.Sprintf("the container's files have %d bytes, and at most %d are accepted", c.FilesBytes, p.MaxFilesBytes), "max_files_bytes"})
	}
	return refusals
}

// Leaving lists the reasons to refuse a container that is to leave.
func (p Policy) Leaving(c Container) []Refusal {
	refusals := p.either(c)
	if !allows(p.SendTo, c.Node) {
		refusals = append(refusals, Refusal{"node " + c.Node, "containers are not sent to it", "send_to"})
	}
	return refusals
}

// either lists the reasons that apply in both directions.
func (p Policy) either(c Container) (refusals []Refusal) {
	if !allows(p.Engines, c.Engine) {
		refusals = append(refusals, Refusal{"engine " + c.Engine, "containers of this engine must not move", "engines"})
	}
	if !allows(p.Modes, c.Mode) {
		refusals = append(refusals, Refusal{"mode " + c.Mode, "this mode is not allowed", "modes"})
	}
	return refusals
}

// Refused are those of some modes in which no container may come or leave.
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
	slices.Sort(lines)
	return lines
}

// allows reports whether a list has an entry. A missing list allows every entry, and every list allows
// an unknown (empty) one.
func allows(list *[]string, entry string) bool {
	return list == nil || entry == "" || slices.Contains(*list, entry)
}

func within(path, directory string) bool {
	return path == directory || directory == "/" || strings.HasPrefix(path, directory+"/")
}
