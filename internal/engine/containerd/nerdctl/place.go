package nerdctl

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// DataRoot is where nerdctl keeps its files, unless it is told otherwise.
const DataRoot = "/var/lib/nerdctl"

// Place is where nerdctl has what it keeps of a container.
type Place struct {
	Socket        string // of containerd
	Namespace, ID string // both are plain names: see containerd's own pattern
}

// Store is the directory of all containers of one containerd: it goes by the address of that.
func (p Place) Store() string {
	sum := sha256.Sum256([]byte(p.Socket))
	return filepath.Join(DataRoot, hex.EncodeToString(sum[:4]))
}

// State is the directory of the container.
func (p Place) State() string { return filepath.Join(p.Store(), "containers", p.Namespace, p.ID) }

// Hosts is the directory of its hosts file.
func (p Place) Hosts() string { return filepath.Join(p.Store(), "etchosts", p.Namespace, p.ID) }

// Log is what it has written, as entries of JSON: see Entry.
func (p Place) Log() string { return filepath.Join(p.State(), p.ID+"-json.log") }

// names are the directories in one of which there is a file for each name, with the ID of the
// container that has it: nerdctl 2.0 has the first.
func (p Place) names() []string {
	return []string{filepath.Join(p.Store(), p.Namespace), filepath.Join(p.Store(), "names", p.Namespace)}
}

// files are those that are mounted into the container, by where.
func (p Place) files() map[string]string {
	return map[string]string{
		"/etc/hosts": filepath.Join(p.Hosts(), "hosts"), "/etc/hostname": filepath.Join(p.State(),
			"hostname"), "/etc/resolv.conf": filepath.Join(p.State(), "resolv.conf"),
	}
}

// Keeps tells whether a mount is of a file that nerdctl keeps for this container.
func (p Place) Keeps(m specs.Mount) bool {
	return m.Source != "" && p.files()[m.Destination] == m.Source
}
