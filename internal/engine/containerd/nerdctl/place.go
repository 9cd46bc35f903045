package nerdctl

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// DataRoot is nerdctl's default directory for its files.
const DataRoot = "/var/lib/nerdctl"

// Place locates the files that nerdctl keeps for a container.
type Place struct {
	Socket        string // of containerd
	Namespace, ID string // plain names: see containerd's own pattern
}

// Store returns the directory of all containers of one containerd, which is named after containerd's
// address.
func (p Place) Store() string {
	sum := sha256.Sum256([]byte(p.Socket))
	return filepath.Join(DataRoot, hex.EncodeToString(sum[:4]))
}

// State returns the directory of the container.
func (p Place) State() string { return filepath.Join(p.Store(), "containers", p.Namespace, p.ID) }

// Hosts returns the directory of the container's hosts file.
func (p Place) Hosts() string { return filepath.Join(p.Store(), "etchosts", p.Namespace, p.ID) }

// Log returns the path of the container's output, as JSON entries: see Entry.
func (p Place) Log() string { return filepath.Join(p.State(), p.ID+"-json.log") }

// names returns the directories that may have a file for each name, with the ID of the container that has
// the name: nerdctl 2.0 uses the first.
func (p Place) names() []string {
	return []string{filepath.Join(p.Store(), p.Namespace), filepath.Join(p.Store(), "names", p.Namespace)}
}

// files returns the files that are mounted into the container, by mount point.
func (p Place) files() map[string]string {
	return map[string]string{
		"/etc/hosts": filepath.Join(p.Hosts(), "hosts"), "/etc/hostname": filepath.Join(p.State(),
			"hostname"), "/etc/resolv.conf": filepath.Join(p.State(), "resolv.conf"),
	}
}

// Keeps reports whether a mount is of a file that nerdctl keeps for this container.
func (p Place) Keeps(m specs.Mount) bool {
	return m.Source != "" && p.files()[m.Destination] == m.Source
}
