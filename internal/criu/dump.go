package criu

import (
	"context"
	"errors"
)

// Mount tells CRIU of a mount that comes from outside of the container. Key is the mount point in the container at
// dump; Value is the name under which the restore looks it up.
type Mount struct {
	Key   string
	Value string
}

// DumpRequest says what to dump.
type DumpRequest struct {
	RootPID        int      // first process of the container
	Root           string   // its root file system, as the dumping process sees it
	WorkDir        string   // for the log; must exist
	FreezeCgroup   string   // kernel.Cgroup.FreezerDir
	ExternalMounts []Mount  // see ExternalFor
	External       []string // see ExternalFor
	TTY            bool     // the container's stdio is a terminal
	GhostLimit     uint32   // largest deleted but open file that is carried in the images, bytes; 0: 1 GiB
}

// Dump is one warm CRIU that waits to dump one container.
type Dump struct{}

// StartDump starts CRIU and returns when it is ready for the request. Nothing is sent, nothing is stopped. ctx bounds
// the start only.
func (t Tool) StartDump(ctx context.Context, request DumpRequest) (*Dump, error) {
	return nil, errors.ErrUnsupported
}

// Run dumps the container, which the caller has frozen, into imagesDir, an existing directory in memory. When it
// returns the images are complete, CRIU holds the processes stopped, and Release must be called. On an error CRIU has
// put everything back, and the caller thaws; the error carries the reason from CRIU's log.
func (d *Dump) Run(ctx context.Context, imagesDir string) error { return errors.ErrUnsupported }

// Release lets go of the processes without letting them run: refreeze must freeze the cgroup and wait until it is
// frozen; then CRIU is killed. Afterwards the container is frozen with complete images and can be thawed (after
// Unrepair) or killed.
func (d *Dump) Release(refreeze func() error) error { return errors.ErrUnsupported }

// Close ends CRIU if it still runs. It may be called at any time, more than once.
func (d *Dump) Close() error { return errors.ErrUnsupported }
