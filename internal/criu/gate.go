package criu

import (
	"context"
	"errors"
	"time"
)

// GateMain is what runs when runc calls this program as `criu`. Without GODWIT_GATE in the environment, and for
// anything but a restore, it becomes the real CRIU. See GateEnv. It returns the exit code.
func GateMain(args []string) int { return 1 }

// GateEnv is the environment for `runc restore` that makes its criu a gate: socket is the path that ListenGate listens
// on, record the file that is made durably before anything runs, criu the real CRIU. PATH must begin with a directory
// in which `criu` is a link to this program: the caller adds that.
func GateEnv(socket, record, criu string) []string { return nil }

// Gate is the agent's side of one gate.
type Gate struct{}

// GateOptions change what runc asked of CRIU.
type GateOptions struct {
	Root string // root file system of the container, a mount point; "" keeps runc's
}

// Resumed tells of a container that runs again.
type Resumed struct {
	PID int       // of its first process, in the gate's pid namespace
	At  time.Time // when it was let go
}

// ListenGate listens for one gate on a unix socket at path. An old socket at path is replaced.
func ListenGate(path string) (*Gate, error) { return nil, errors.ErrUnsupported }

// WaitReady returns when the gate has runc's request and a warm CRIU.
func (g *Gate) WaitReady(ctx context.Context) error { return errors.ErrUnsupported }

// Go lets CRIU restore from what is now in the images directory. When all sockets and processes exist and before the
// first of them runs it calls beforeResume; if that fails, or ctx ends before it, nothing will ever run. Otherwise the
// record is made durably, and the processes run. An error means that nothing ran, unless errors.Is(err, ErrUncertain).
func (g *Gate) Go(ctx context.Context, options GateOptions, beforeResume func() error) (Resumed, error) {
	return Resumed{}, errors.ErrUnsupported
}

// Close closes the socket. A gate that has not been allowed to resume ends: nothing of it will ever run.
func (g *Gate) Close() error { return errors.ErrUnsupported }

// ErrUncertain is wrapped by errors of Go after which only Ran can tell whether the container runs.
var ErrUncertain = errors.New("it is not known whether the processes run")

// Ran tells whether the gate with this record file let its container run. If the gate still lives it waits for its end
// (a gate whose agent is gone ends by itself at once); when ctx ends first it kills the gate, and CRIU with it. So
// the answer false is final. The caller removes the processes that a killed restore may leave (kernel.Cgroup.Kill).
func Ran(ctx context.Context, record string) (bool, error) { return false, errors.ErrUnsupported }
