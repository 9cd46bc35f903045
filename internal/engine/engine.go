// Package engine is the contract between Godwit and whatever runs containers.
//
// It exists so that a migration knows nothing of Docker, runc or LXC: the agent speaks to this interface, and each
// package below this one makes one engine speak it. An adapter knows no other adapter, no network peer and no
// migration; it answers what a container is, freezes and dumps it, and makes it again from what was dumped.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/godwit/godwit/internal/files"
)

// Errors that callers act on. Adapters wrap them with what, where and what to do.
var (
	ErrNotFound   = errors.New("no such container")
	ErrNameTaken  = errors.New("name is taken")
	ErrNotRunning = errors.New("container is not running")
	ErrBusy       = errors.New("container is busy")
)

// State of a container, in the words of `godwit ps`.
type State string

// The states a container can be in.
const (
	Created  State = "created"
	Running  State = "running"
	Frozen   State = "frozen" // by a migration; its processes do not run
	Arriving State = "arriving"
	Exited   State = "exited"
	Damaged  State = "damaged" // what is recorded of it cannot be read: only List tells of it, and nothing touches it
)

// Definition describes a container so that another node can make the same one. It holds no path of the node it comes
// from. It travels between nodes as JSON and is validated where it arrives.
type Definition struct {
	ID       string            `json:"id"`   // 64 lower-case hexadecimal digits, the same on every node
	Name     string            `json:"name"` // unique on a node: [a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}
	Image    string            `json:"image"`
	ImageID  string            `json:"image_id"` // digest of the image's configuration
	Layers   []string          `json:"layers"`   // DiffIDs, lowest first
	Args     []string          `json:"args"`
	Env      []string          `json:"env"`
	Dir      string            `json:"dir"`
	User     string            `json:"user"`
	Hostname string            `json:"hostname"`
	TTY      bool              `json:"tty"`
	ReadOnly bool              `json:"read_only"`
	Volumes  []Volume          `json:"volumes"`
	Limits   Limits            `json:"limits"`
	Network  Network           `json:"network"`
	Labels   map[string]string `json:"labels"`
	Created  time.Time         `json:"created"`
	// Engine is the engine's own knowledge about a running container that its namesake at the target must have before
	// the state arrives. Opaque to all others, bounded in size, and validated by the engine that gets it.
	Engine json.RawMessage `json:"engine,omitempty"`
}

// Volume is a named volume mounted into the container.
type Volume struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only"`
}

// Limits of the container's cgroup; zero means none.
type Limits struct {
	MemoryBytes int64   `json:"memory_bytes"`
	CPUs        float64 `json:"cpus"`
	Pids        int64   `json:"pids"`
}

// Network is the address that a container keeps for life.
type Network struct {
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
	MTU     int        `json:"mtu"`
}

// Container is what an engine tells about one container.
type Container struct {
	Definition Definition `json:"definition"`
	State      State      `json:"state"`
	PID        int        `json:"pid"` // of its first process, in the agent's pid namespace; 0 if it does not run
	Started    time.Time  `json:"started"`
	Finished   time.Time  `json:"finished"`
	ExitCode   int        `json:"exit_code"`
}

// LogOptions choose what Logs emits.
type LogOptions struct {
	Follow bool
	Tail   int // lines; negative: all
}

// LogEntry is a piece of a container's output, in order.
type LogEntry struct {
	Time   time.Time `json:"time"`
	Stream string    `json:"stream"` // stdout or stderr
	Data   []byte    `json:"data"`
}

// Exec describes a further process to run in a container.
type Exec struct {
	Args   []string
	Env    []string
	Dir    string
	User   string
	Stdin  io.Reader // nil: /dev/null
	Stdout io.Writer
	Stderr io.Writer
}

// Problem is one thing that stands against moving a container.
type Problem struct {
	What   string `json:"what"`   // for example: process 12 (worker), descriptor 7: io_uring
	Why    string `json:"why"`    // for example: CRIU cannot dump io_uring instances
	Remedy string `json:"remedy"` // what the user can do
}

// Engine is one container engine on one node. All methods may be called concurrently and are safe to call again after
// the caller crashed: Thaw, Destroy and Discard find out for themselves what there is, and doing nothing is success.
type Engine interface {
	// Name of the engine: embedded, docker, podman, containerd, lxc.
	Name() string
	// List tells of every container, in order of name.
	List(ctx context.Context) ([]Container, error)
	// Inspect finds a container by name, id, or unique prefix of an id. Error: ErrNotFound.
	Inspect(ctx context.Context, ref string) (Container, error)
	// Stop asks the first process to end (SIGTERM), and ends it when grace is over (SIGKILL).
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove deletes a container that does not run; with force, one that does.
	Remove(ctx context.Context, id string, force bool) error
	// Logs calls emit for each entry, oldest first, until there are no more (or, with Follow, until ctx ends or the
	// container has ended and all is emitted).
	Logs(ctx context.Context, id string, options LogOptions, emit func(LogEntry) error) error
	// Exec runs a process in a running container and returns its exit code.
	Exec(ctx context.Context, id string, process Exec) (int, error)

	// Examine lists what stands against moving this running container: what CRIU cannot dump, exec sessions, and so
	// on. It changes nothing.
	Examine(ctx context.Context, id string) ([]Problem, error)
	// Depart prepares a running container's move: all that can be done before the freeze is done when it returns.
	Depart(ctx context.Context, id string) (Departure, error)
	// Trees are the directories that make up the container's own state: what a move must copy.
	Trees(ctx context.Context, id string) ([]files.Tree, error)
	// Thaw lets a container that a Departure froze go on, whatever has happened to it since: sockets that a dump left
	// in repair mode work again, and what the dump left in the file system is removed.
	Thaw(ctx context.Context, id string) error
	// Destroy kills a frozen container and removes all of it, without its processes or the peers of its connections
	// noticing anything.
	Destroy(ctx context.Context, id string) error

	// Reserve lists what stands against making this container here: its name taken, a missing feature, and so on.
	Reserve(ctx context.Context, definition Definition) ([]Problem, error)
	// Arrive prepares a container that will be restored here: all that can be done before its state is here is done
	// when it returns. The image's layers must be here, and netns must be the path of its network namespace.
	Arrive(ctx context.Context, definition Definition, netns string) (Arrival, error)
	// Arrived tells what became of an arrival, also after the agent crashed. It ends an arrival whose agent is gone
	// before it answers, so that NeverRan is final.
	Arrived(ctx context.Context, id string) (Outcome, error)
	// Discard removes an arrival that never ran, and all that was made for it.
	Discard(ctx context.Context, id string) error
}

// Departure is a running container that is about to be frozen. Freeze and Dump are called once each, in this order.
type Departure interface {
	// Freeze stops the container's processes and returns when all are stopped and all they had written to stdout and
	// stderr is in the log. It returns the instant at which they stopped.
	Freeze(ctx context.Context) (time.Time, error)
	// Dump writes the execution state to a directory in memory. When it returns the container is still frozen, and
	// may be thawed (Thaw) or destroyed (Destroy). Files in the directory whose names begin with pages- only ever grow
	// while Dump runs, so they can be sent meanwhile.
	Dump(ctx context.Context, directory string) error
	// Close ends what Depart started; it neither thaws nor destroys the container.
	Close() error
}

// Arrival is a container that waits for its state.
type Arrival interface {
	// ImagesDir is the directory, in memory, into which the execution state must be written.
	ImagesDir() string
	// TreePath is where the content of the source's tree of this kind and name must be put.
	TreePath(kind files.TreeKind, name string) (string, error)
	// Restore makes the processes from what is now in ImagesDir and in the trees. When all their sockets exist and
	// before the first of them runs it calls beforeResume; if that fails nothing will ever run. That the container
	// runs is then recorded durably, and it runs. Restore returns the instant of the resume.
	Restore(ctx context.Context, beforeResume func() error) (time.Time, error)
	// Close ends what Arrive started if the container has not been resumed; Discard removes what is left.
	Close() error
}

// Outcome of an arrival.
type Outcome string

// What can have become of an arrival.
const (
	NeverRan Outcome = "never-ran" // and never will: nothing is left that could resume it
	Ran      Outcome = "ran"       // it was resumed; Inspect tells what it is doing now
)
