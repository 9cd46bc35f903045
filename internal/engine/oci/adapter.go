package oci

import (
	"context"
	"encoding/json"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
)

// Adapter has the operations of one engine that this package needs. Methods may be called concurrently.
type Adapter interface {
	// Name of the engine, and its title in messages.
	Name() string
	Title() string
	// Programs are prefixes of the names of the engine's processes. Activity of one of these processes
	// shows that the engine is busy. The first program answers queries.
	Programs() []string
	// Away returns an error that wraps engine.ErrAway and says why the engine is not available, or nil. It
	// does not query the engine.
	Away() error

	// RestoreDir is the name of a container's restore directory, by the engine's ID (package shim).
	RestoreDir(engineID string) string

	// List lists all containers, in the engine's order. For containers whose engine IDs are busy, it does
	// not query the engine, and returns only what is known otherwise.
	List(ctx context.Context, busy func(engineID string) bool) ([]Container, error)
	// Find finds a container by the engine's ID, a unique prefix of it, or a name. Error:
	// engine.ErrNotFound.
	Find(ctx context.Context, ref string) (Container, error)
	Stop(ctx context.Context, found Container, grace time.Duration) error
	// Remove removes a container, running or not, and its anonymous volumes if the options say so. A
	// container that does not exist or is already being removed is no error.
	Remove(ctx context.Context, engineID string, options RemoveOptions) error
	Logs(ctx context.Context, found Container, options engine.LogOptions,
		emit func(engine.LogEntry) error) error
	Exec(ctx context.Context, found Container, process engine.Exec) (int, error)
	VolumePath(volume engine.Volume) (string, error)
	// RemoveVolume removes a named volume. A missing volume and a volume in use are no errors.
	RemoveVolume(ctx context.Context, name string) error
	// MadeFor reports whether a named volume exists and has this label: then Create made it.
	MadeFor(ctx context.Context, name, label, value string) (bool, error)

	// Obstacles lists the parts of a container's configuration that cannot move.
	Obstacles(ctx context.Context, found Container) []engine.Problem
	// Process returns where to find the process data of a running container.
	Process(found Container) (Process, error)
	// Root returns a container's root file system as the engine mounts it while the container runs.
	Root(found Container) (mounts.Overlay, error)
	// Shm returns the directory in memory that the engine makes outside of a container for its /dev/shm, or
	// "" if there is none.
	Shm(found Container) string
	// Log returns the path of the engine's log of a container if the log moves, and "" otherwise. The file
	// need not exist.
	Log(ctx context.Context, found Container) (string, error)
	// Restart sets what the engine does when a container ends: the policy, as in Container.Restart, or
	// nothing if the policy is nil.
	Restart(ctx context.Context, found Container, policy json.RawMessage) error
	// StartsAtBoot reports whether the engine, with this policy (as in Container.Restart), would start a
	// container that was running when the machine went down.
	StartsAtBoot(found Container, policy json.RawMessage) bool
	// Gone deletes what the adapter keeps outside the engine for a container that no longer exists.
	Gone(engineID string) error
	// Describe adds the engine's part to the definition of a running container, and the layers of its image
	// if the engine keeps images itself.
	Describe(ctx context.Context, found Container, stdio []string, d *engine.Definition) error

	// Expect reads the definition of an arriving container. The definition comes from another node, so
	// Expect refuses a definition that the engine could not make or that would do harm.
	Expect(d engine.Definition) (Expected, error)
	// Reserve lists the obstacles to making such a container, except its ID and name.
	Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error)
	// Create makes the container and its volumes, all with this label and with godwit-runc as the runtime,
	// and returns the engine's ID. The engine must not start the container by itself.
	Create(ctx context.Context, d engine.Definition, label, value string) (engineID string, err error)
	// Start starts the container, and returns when it runs.
	Start(ctx context.Context, engineID string) error
}

// Guarder is an Adapter whose engine can be made to refuse to start a container. The engine knows of a
// leaving copy only that it runs or has ended, so anybody could start a second copy. The guard survives a
// restart of the engine or the agent. Both methods are idempotent. Adapters whose Restart prevents every
// start, as Podman's does, need not be Guarders.
type Guarder interface {
	Guard(ctx context.Context, found Container) error
	Unguard(ctx context.Context, found Container) error
}

// Marker is an Adapter whose engine can show in its list that a container is only the copy of a container
// that has moved. Both methods are idempotent.
type Marker interface {
	Mark(ctx context.Context, found Container, moved Moved) error
	Unmark(ctx context.Context, found Container, moved Moved) error
}

// Moved is a moved container: its original name, and the node to which it moved.
type Moved struct{ Name, Node string }

// MarkedName is the copy's name with engines that can rename it.
func (m Moved) MarkedName() string { return m.Name + "-moved-to-" + m.Node }

// Restarter is an Adapter whose engine restarts ended containers and knows who ended them.
type Restarter interface {
	// Restarts reports whether the engine, with this policy, would have restarted a container that was
	// running at this time and does not run any more. If somebody stopped it with the engine, the engine
	// would not.
	Restarts(ctx context.Context, found Container, policy json.RawMessage, since time.Time) (bool, error)
}

// LeftEnder is an Adapter whose engine may leave processes of a removed container behind.
type LeftEnder interface {
	// EndLeft ends these processes. The container never ran, and the engine has removed it.
	EndLeft(ctx context.Context, engineID string) error
}

// Networker is an Adapter whose engine may make a container's network only after creating the container.
type Networker interface {
	// NetworksLate reports whether the engine does so for this container.
	NetworksLate(ctx context.Context, d engine.Definition) (bool, error)
}

// NetworkCreator is an Adapter whose engine has no networks: it creates a container's network itself.
type NetworkCreator interface {
	// Connect makes the network of an arriving container in the network namespace that its runtime has
	// made. Remove or Gone removes the network, also what Connect has made before it failed.
	Connect(ctx context.Context, engineID, netns string, d engine.Definition) error
}

// IDReuser is an Adapter whose engine may reuse a removed container's ID: people choose them.
type IDReuser interface {
	// EngineID returns the ID that Create will assign to a container whose definition Expect has accepted.
	EngineID(d engine.Definition) (string, error)
}

// FileMigrator is an Adapter whose containers have mounted files that another program keeps and that
// migrate with the container.
type FileMigrator interface {
	// Keep copies these files into a directory that moves with a container.
	Keep(found Container, directory string) error
	// Bring installs the files from such a directory, which another node has sent, before the container
	// runs.
	Bring(engineID, directory string, d engine.Definition) error
}

// Container is a container as its engine describes it.
type Container struct {
	ID        string           // the engine's own
	Container engine.Container // by that ID; its definition lacks the engine's part
	Paused    bool
	Restart   json.RawMessage // what the engine does when the container ends
	// the engine's directory for the container, with the log unless configured otherwise; "" if unknown
	Directory string
	// the ID of the container for whose arrival this one was made, without which the engine could not have
	// started it; "" if unknown
	Arrival string
	Native  any // the adapter's own data
}

func (f Container) name() string { return f.Container.Definition.Name }

// Process says where to find the data of a container's processes.
type Process struct {
	Reader int    // PID of the process that reads the container's output
	Bundle string // the runtime's bundle of the container
	State  string // the runtime's state file
}

// Expected is what this package must know about an arriving container.
type Expected struct {
	Stdio         []string        // stdin, stdout and stderr in the images, in CRIU's notation
	PrivateCgroup bool            // it has a cgroup namespace of its own
	Restart       json.RawMessage // once it runs
	Log           bool            // the source's log comes, too
	// Late means that the engine cannot be queried, about this container or others, from when it starts the
	// container until the container runs. So this package starts it as late as possible. ShmBytes is then
	// the size of its /dev/shm, if the engine makes that outside the container.
	Late     bool
	ShmBytes int64
	// Patience is the engine's start timeout, after which it removes the container, whatever the container
	// is doing. 0: none.
	Patience time.Duration
}

// RemoveOptions say how a container is removed.
type RemoveOptions struct {
	Force   bool // also if it runs
	Volumes bool // with its anonymous volumes
}
