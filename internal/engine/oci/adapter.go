package oci

import (
	"context"
	"encoding/json"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
)

// Adapter is what this package asks one engine for. Methods may be called concurrently.
type Adapter interface {
	// Name of the engine, and its name for people.
	Name() string
	Title() string
	// Programs are the beginnings of the names of processes whose work shows that the engine is busy with
	// something. The first one answers questions.
	Programs() []string
	// Away is why the engine is not there, wrapping engine.ErrAway, or nil. It asks nobody.
	Away() error

	// RestoreDir is the name of a container's restore directory, by the engine's ID (package shim).
	RestoreDir(engineID string) string

	// List tells of all containers, in the engine's order. Those whose engine IDs are busy it does not
	// ask about: it tells of them what it can without.
	List(ctx context.Context, busy func(engineID string) bool) ([]Container, error)
	// Find finds a container by the engine's own id, a unique prefix of it, or a name. Error:
	// engine.ErrNotFound.
	Find(ctx context.Context, ref string) (Container, error)
	Stop(ctx context.Context, found Container, grace time.Duration) error
	// Remove has the engine remove a container, running or not, with the volumes that it has made
	// up for it if those are to go. That the container is not there, or is being removed, is no
	// error.
	Remove(ctx context.Context, engineID string, options RemoveOptions) error
	Logs(ctx context.Context, found Container, options engine.LogOptions,
		emit func(engine.LogEntry) error) error
	Exec(ctx context.Context, found Container, process engine.Exec) (int, error)
	VolumePath(volume engine.Volume) (string, error)
	// RemoveVolume removes a named volume. That it is not there, or that a container has it, is no error.
	RemoveVolume(ctx context.Context, name string) error
	// MadeFor tells whether a named volume is there and has this label: it was made by Create.
	MadeFor(ctx context.Context, name, label, value string) (bool, error)

	// Obstacles lists what of a container's configuration cannot move.
	Obstacles(ctx context.Context, found Container) []engine.Problem
	// Process tells where what is known of the processes of a container that runs is.
	Process(found Container) (Process, error)
	// Root is a container's root file system, as the engine mounts it while the container runs.
	Root(found Container) (mounts.Overlay, error)
	// Shm is the directory in memory that the engine makes outside of a container for its /dev/shm;
	// "" if there is none.
	Shm(found Container) string
	// Log is the path of what the engine logs of a container, if that moves; "" otherwise. The file
	// need not be there.
	Log(ctx context.Context, found Container) (string, error)
	// Restart says what the engine is to do when a container ends: as in Found.Restart, or nothing,
	// for which policy is nil.
	Restart(ctx context.Context, found Container, policy json.RawMessage) error
	// StartsAtBoot tells whether the engine would start a container that ran when the machine went
	// down, with this policy: as in Found.Restart.
	StartsAtBoot(found Container, policy json.RawMessage) bool
	// Gone forgets what the adapter keeps beside the engine of a container that is no more.
	Gone(engineID string) error
	// Describe adds to the definition of a container that runs the engine's part, and the layers of
	// its image if the engine keeps images itself (engine.ImageKeeper).
	Describe(ctx context.Context, found Container, stdio []string, d *engine.Definition) error

	// Expect reads the definition of a container that is to come, and refuses one that the engine
	// could not make, or that means harm: it comes from another node.
	Expect(d engine.Definition) (Expected, error)
	// Reserve lists what stands against making such a container, beside its id and name.
	Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error)
	// Create makes the container and its volumes, with godwit-runc as its runtime, all with this
	// label, and returns the engine's ID. The engine is not to start it by itself.
	Create(ctx context.Context, d engine.Definition, label, value string) (engineID string, err error)
	// Start starts it, and returns when it runs.
	Start(ctx context.Context, engineID string) error
}

// Guarder is an Adapter that can have its engine refuse to start a container: of a copy that leaves
// the engine knows nothing but that it runs, or has ended, and whoever asks for it would have a
// second one. What is guarded stays so when the engine or the agent is started again. Both methods
// may be repeated. Adapters whose Restart refuses each start, as Podman's, need not be one.
type Guarder interface {
	Guard(ctx context.Context, found Container) error
	Unguard(ctx context.Context, found Container) error
}

// Marker is an Adapter whose engine can show, where it lists a container, that it is only the copy of one
// that has moved. Both methods may be repeated.
type Marker interface {
	Mark(ctx context.Context, found Container, moved Moved) error
	Unmark(ctx context.Context, found Container, moved Moved) error
}

// Moved is a container that has moved, by the name that it has otherwise, and to where.
type Moved struct{ Name, Node string }

// MarkedName is what the copy is called by engines that can rename it.
func (m Moved) MarkedName() string { return m.Name + "-moved-to-" + m.Node }

// Restarter is an Adapter whose engine starts again what has ended, and tells who has ended it.
type Restarter interface {
	// Restarts tells whether the engine would have started a container by this policy that does not
	// run any more, and was running at this time: not if somebody has had the engine end it.
	Restarts(ctx context.Context, found Container, policy json.RawMessage, since time.Time) (bool, error)
}

// LeftEnder is an Adapter whose engine may leave processes behind of a container that it has removed.
type LeftEnder interface {
	// EndLeft ends them. The container never ran, and its engine has removed it.
	EndLeft(ctx context.Context, engineID string) error
}

// Networker is an Adapter whose engine may make the network of a container when that has been
// created, and not before.
type Networker interface {
	// NetworksLate tells whether it makes that of this one then.
	NetworksLate(ctx context.Context, d engine.Definition) (bool, error)
}

// NetworkCreator is an Adapter whose engine has no networks: it creates a container's network itself.
type NetworkCreator interface {
	// Connect makes the network of a container that comes, in the network namespace that its
	// runtime has made. What it has made of it goes with Remove, or Gone, also if it fails.
	Connect(ctx context.Context, engineID, netns string, d engine.Definition) error
}

// IDReuser is an Adapter whose engine may reuse a removed container's ID: people choose them.
type IDReuser interface {
	// EngineID is the ID that Create will give to a container of a definition that Expect has accepted.
	EngineID(d engine.Definition) (string, error)
}

// FileMigrator is an Adapter whose containers have files mounted that another program keeps, and
// that migrate with them.
type FileMigrator interface {
	// Keep copies them into a directory that moves with a container.
	Keep(found Container, directory string) error
	// Bring puts there what has come in such a directory, from another node, before the container runs.
	Bring(engineID, directory string, d engine.Definition) error
}

// Container is a container as its engine describes it.
type Container struct {
	ID        string           // the engine's own
	Container engine.Container // by that id; its definition without the engine's part
	Paused    bool
	Restart   json.RawMessage // what the engine does when it ends
	// the engine's own of it, in which it logs unless it is told otherwise; "" if it cannot be told
	Directory string
	// the id of the one that it was made for, and without which the engine could not have started
	// it; "" if that is not told
	Arrival string
	Native  any // what the adapter knows beside, for itself
}

func (f Container) name() string { return f.Container.Definition.Name }

// Process is where what is known of the processes of a container is.
type Process struct {
	Reader int    // pid of who reads what it writes
	Bundle string // directory with which the runtime has made it
	State  string // file in which the runtime keeps what it knows
}

// Expected is what this package must know of a container that is to come.
type Expected struct {
	Stdio         []string        // what stdin, stdout and stderr are in the images, in the words of CRIU
	PrivateCgroup bool            // it has a cgroup namespace of its own
	Restart       json.RawMessage // once it runs
	Log           bool            // what was logged of it comes
	// Late says that nobody can ask the engine about the container from when it starts it until it
	// runs, nor about others: so it starts it as late as possible. ShmBytes is then the size of its
	// /dev/shm, if the engine makes that outside of it.
	Late     bool
	ShmBytes int64
	// Patience is for how long an engine can wait for a container that it starts: it removes it
	// then, whatever it is doing. 0: for ever.
	Patience time.Duration
}

// RemoveOptions say how a container is removed.
type RemoveOptions struct {
	Force   bool // also if it runs
	Volumes bool // with the volumes that the engine has made up for it
}
