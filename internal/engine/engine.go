// Package engine is the contract between Godwit and whatever runs containers.
//
// It exists so that a migration knows nothing of Docker, runc or LXC: the agent speaks to this
// interface, and each package below this one makes one engine speak it. An adapter knows no other
// adapter, no network peer and no migration; it answers what a container is, freezes and dumps it,
// and makes it again from what was dumped.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/memory"
)

// Errors that callers act on. Adapters wrap them with what, where and what to do.
var (
	ErrNotFound   = errors.New("no such container")
	ErrNameTaken  = errors.New("name is taken")
	ErrNotRunning = errors.New("container is not running")
	ErrBusy       = errors.New("container is busy")
	ErrNotFilling = errors.New("the container's memory is not being filled")
	ErrUnsettled  = errors.New("container has connections that the move would lose")
	ErrNoVolume   = errors.New("no such volume")
	ErrInvalid    = errors.New("container definition is not valid")
	// ErrNoEngine says that a container is of an engine that this node does not know.
	ErrNoEngine = errors.New("no such engine")
	// ErrAway says that an engine that this node knows is not there: it was stopped, or never
	// installed. What it had it may still have, and its containers may run.
	ErrAway = errors.New("engine is not there")
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
	// what is recorded of it cannot be read: only List tells of it, and nothing touches it
	Damaged State = "damaged"
)

// Definition describes a container so that another node can make the same one. It holds no path of
// the node it comes from, but those of host directories, which are the same on every node. It
// travels between nodes as JSON and is validated where it arrives.
type Definition struct {
	// EngineName says whose container it is; empty is that of the embedded engine, whose
	// definitions need no name.
	EngineName string `json:"engine_name,omitempty"`
	// Namespace is that of the engine in which it has the container, and its image, if it has several.
	Namespace string `json:"namespace,omitempty"`

	ID    string `json:"id"`   // 64 lower-case hexadecimal digits, the same on every node
	Name  string `json:"name"` // unique on a node: [a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}
	Image string `json:"image"`
	// digest of the image's configuration, or what its engine calls it
	ImageID string `json:"image_id"`
	// DiffIDs, lowest first; empty: the engine cares for images itself
	Layers   []string          `json:"layers"`
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
	// How it is asked to end, and when one that was started counts as healthy.
	StopSignal   string  `json:"stop_signal,omitempty"`           // empty: SIGTERM
	StopTimeout  float64 `json:"stop_timeout_seconds,omitempty"`  // 0: the default
	StartTimeout float64 `json:"start_timeout_seconds,omitempty"` // 0: the default
	Health       *Health `json:"health,omitempty"`
	// Restart is the policy of the embedded engine by which it is started again, see
	// ParseRestartPolicy. Other engines carry theirs in Engine.
	Restart string `json:"restart,omitempty"`
	// Ports of the node by which it is reached, if its address is of the engine's own network.
	Ports []Published `json:"ports,omitempty"`
	// Passed are dangerous system calls that the filters (seccomp) of a running container's processes let
	// through, by name, as far as the source knows: advice, by which the target refuses the container before
	// anything moves. What counts are the filters in the images (criu/vet). nil: not known.
	Passed []string `json:"passed_system_calls,omitzero"`
	// Engine is the engine's own knowledge about a running container that its namesake at the
	// target must have before the state arrives. Opaque to all others, bounded in size, and
	// validated by the engine that gets it.
	Engine json.RawMessage `json:"engine,omitempty"`
}

// Limits of the container's cgroup; zero means none.
type Limits struct {
	MemoryBytes int64   `json:"memory_bytes"`
	CPUs        float64 `json:"cpus"`
	Pids        int64   `json:"pids"`
}

// Network is the address that a container keeps for life. Without an address the container's
// network is the engine's own: nobody else makes it, routes to it, or holds its packets.
type Network struct {
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
	MTU     int        `json:"mtu"`
	// Bridge is the engine's own network that the address is of: the engine gives it, and makes the
	// interface, on each node. Empty: the address is of Godwit's pool.
	Bridge     string `json:"bridge,omitempty"`
	PrefixBits int    `json:"prefix_bits,omitempty"` // of that network
	Routed     bool   `json:"routed,omitempty"`      // see RoutedNetwork
}

// Pooled tells whether there is an address of Godwit's pool, which the agents route.
func (n Network) Pooled() bool { return n.Address.IsValid() && n.Bridge == "" }

// OnBridge tells whether there is an address of a network of the engine's own.
func (n Network) OnBridge() bool { return n.Address.IsValid() && n.Bridge != "" }

// RoutedNetwork is a network of an engine that all nodes have, with the same subnet. The engine of each node
// assigns a part of its addresses, and the agents route all of them.
type RoutedNetwork struct {
	Name   string
	Device string // the bridge
	Subnet netip.Prefix
}

// Published is a port of a node that leads to a container.
type Published struct {
	Protocol      string     `json:"protocol"`      // tcp or udp
	Host          netip.Addr `json:"host,omitzero"` // zero: each address of the node
	HostPort      uint16     `json:"host_port"`
	ContainerPort uint16     `json:"container_port"`
}

// Container is what an engine tells about one container.
type Container struct {
	Definition Definition `json:"definition"`
	State      State      `json:"state"`
	// of its first process, in the agent's pid namespace; 0 if it does not run
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	ExitCode int       `json:"exit_code"`
	// Leaving is there from PrepareDump or Halt until Resume, Revive or Destroy: it is that of the
	// departure.
	Leaving *Leave `json:"leaving,omitempty"`
	// Migration is the state of the migration by which it leaves, as in package migration. The agent tells
	// it.
	Migration string `json:"migration,omitempty"`
	// NotRunning is why a container of the embedded engine does not run. The agent tells it.
	NotRunning string `json:"not_running,omitempty"`
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

// Engine is one container engine on one node. All methods may be called concurrently and are safe
// to call again after the caller crashed: Resume, Destroy and Discard find out for themselves what
// there is, and doing nothing is success.
type Engine interface {
	// Name of the engine: embedded, docker, podman, containerd, lxc.
	Name() string
	// List tells of every container, in order of name. Error: ErrAway.
	List(ctx context.Context) ([]Container, error)
	// Inspect finds a container by name, id, or unique prefix of an id. Errors: ErrNotFound;
	// ErrAway where nobody can tell.
	Inspect(ctx context.Context, ref string) (Container, error)
	// Stop asks the first process to end, by the container's own stop signal, and kills it when
	// grace is over; negative: the container's own grace.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove deletes a container that does not run; with force, one that does.
	Remove(ctx context.Context, id string, force bool) error
	// Logs calls emit for each entry, oldest first, until there are no more (or, with Follow, until
	// ctx ends or the container has ended and all is emitted).
	Logs(ctx context.Context, id string, options LogOptions, emit func(LogEntry) error) error
	// Exec runs a process in a running container and returns its exit code.
	Exec(ctx context.Context, id string, process Exec) (int, error)

	// Examine lists what stands against moving this running container: what CRIU cannot dump, exec
	// sessions, and so on. It changes nothing.
	Examine(ctx context.Context, id string) ([]Problem, error)
	// Processes are the pids, in the agent's pid namespace, of all processes of a container at this moment.
	Processes(ctx context.Context, id string) ([]int, error)
	// PrepareDump prepares a running container's move: all that can be done before the freeze is done
	// when it returns.
	PrepareDump(ctx context.Context, id string, options DumpOptions) (Departure, error)
	// CPUTime is how much processor time a running container has used on this node. Error:
	// errors.ErrUnsupported where it is not counted.
	CPUTime(ctx context.Context, id string) (time.Duration, error)
	// Throttle lets a container use so many processors and no more; if it may use less anyway, that
	// holds. 0 ends it, whoever began it, and is right for a container in any state. Error:
	// errors.ErrUnsupported where processor time cannot be limited.
	Throttle(ctx context.Context, id string, cpus float64) error
	// Trees are the directories that make up the container's own state: what a move must copy. The
	// caller lets go of them (files.LetGo).
	Trees(ctx context.Context, id string) ([]files.Tree, error)
	// Resume lets a container that a Departure froze go on, whatever has happened to it since:
	// sockets that a dump left in repair mode work again, and what the dump left in the file system
	// is removed.
	Resume(ctx context.Context, id string) error
	// Destroy kills a frozen container and removes all of it, without its processes or the peers of
	// its connections noticing anything. Its volumes went with it, so they are removed, too, but
	// not those that stay (by Volume.Key), that another container on this node has, or that are
	// host directories which it could only read.
	Destroy(ctx context.Context, id string, stay []string) error

	// Reserve lists what stands against making this container here: its name taken, a volume that
	// is here already and does not stay, a missing feature, and so on.
	Reserve(ctx context.Context, definition Definition) ([]Problem, error)
	// PrepareRestore prepares a container that will be restored here: all that can be done before
	// its state is here is done when it returns. netns must be the path of its network namespace,
	// or empty if the engine makes that itself (Definition.Network). The image's layers may come
	// later, but before Restore.
	PrepareRestore(ctx context.Context, definition Definition, netns string) (Arrival, error)
	// Arrived tells what became of an arrival, also after the agent crashed. It ends an arrival
	// whose agent is gone before it answers, so that NeverRan is final.
	Arrived(ctx context.Context, id string) (Outcome, error)
	// Discard removes an arrival that never ran, and all that was made for it.
	Discard(ctx context.Context, id string) error
	// Salvage ends an arrival that never ran, as Arrived does, and calls take for each directory on
	// a disk to which its files have come, of those that Discard would empty or remove. It may move
	// away what is in there.
	Salvage(ctx context.Context, id string, take func(files.Tree) error) error
	// Memory tells how far the memory of a container is that is filled while it runs
	// (Arrival.FillFrom). As long as it is being filled Examine says so, and PrepareDump refuses:
	// ErrBusy.
	Memory(ctx context.Context, id string) (memory.FillReport, error)
	// RemotePages connects to what fills the memory of a container, to bring it the pages that come
	// after the restore (memory.Store.Remote). It waits until what fills has been told which these
	// are, which is during Restore, and works from Arrival.FillFrom on until the memory is
	// complete, also after the agent crashed. Error: ErrNotFilling if nothing fills it; Memory
	// tells then whether it is complete.
	RemotePages(ctx context.Context, id string) (memory.RemotePages, error)

	Anew

	// VolumePath is where the content of a volume is on this node, or would be. Error:
	// errors.ErrUnsupported for a tmpfs.
	VolumePath(volume Volume) (string, error)
	// Volumes tells of every named volume of this node, in order of name.
	Volumes(ctx context.Context) ([]StoredVolume, error)
	// RemoveVolume deletes a named volume. Errors: ErrNoVolume, ErrBusy as long as a container has it.
	RemoveVolume(ctx context.Context, name string) error
}

// DumpOptions say what a dump leaves to the caller.
type DumpOptions struct {
	// LeaveMemory leaves the content of private anonymous memory to the caller, who carries it another way
	// (memory.Source): Dump writes where it is, and not what.
	LeaveMemory bool
	// Whole has Dump look at all memory that is left to the caller. Otherwise it takes no look at
	// what is large.
	Whole bool
	// Leave is told by Container.Leaving from now on.
	Leave Leave
}

// Departure is a running container that is about to be frozen. Settle, Freeze and Dump are called
// in this order, Dump once; Settle need not be.
type Departure interface {
	// Settle waits, for some seconds at most, until the container has no connections that a dump
	// would lose: half open, not accepted, closed by the container but not yet by their peers. It
	// is called when no new connections are let through to the container any more, but all else is.
	Settle(ctx context.Context) error
	// Freeze stops the container's processes and returns when all are stopped and all they had
	// written to stdout and stderr is in the log. It returns the instant at which they stopped.
	// Error: ErrUnsettled, after Settle and a few times at most, if there is again what Settle
	// waits for, or such a connection within the container that does not come to its end while
	// nobody outside is heard; the container runs then, and both are to be called again.
	Freeze(ctx context.Context) (time.Time, error)
	// LeaveShared leaves the content of the memory that processes share without a file to the
	// caller, as DumpOptions do with the rest: all of it, whose inodes these are. False: that is
	// not possible, and Dump writes it. It may be called between Freeze and Dump.
	LeaveShared(inodes []uint64) (bool, error)
	// Dump writes the execution state to a directory in memory. When it returns the container is
	// still frozen, and may be resumed (Resume) or destroyed (Destroy). Files in the directory whose
	// names begin with pages- only ever grow while Dump runs, so they can be sent meanwhile.
	Dump(ctx context.Context, directory string) error
	// LeftOut tells which memory a Dump to this directory has left to the caller.
	LeftOut(directory string) (memory.Left, error)
	// Touched tells which pages are touched first when the container is restored from a Dump to
	// this directory, the most important ones first. It is advice: some may not exist, and some
	// come twice.
	Touched(directory string) ([]memory.RemoteFault, error)
	// Close ends what PrepareDump started; it neither resumes nor destroys the container.
	Close() error
}

// Permission is what a restore needs before the first process runs.
type Permission struct {
	Ask func() error // whether it may run; an error: no
	// Open opens the container's network. Nothing may reach its sockets before it is certain that it runs:
	// they acknowledge what they receive, and then nobody sends it to the source again. A container that
	// starts anew has none.
	Open func() error
}

// Arrival is a container that waits for its state.
type Arrival interface {
	// ImagesDir is the directory, in memory, into which the execution state must be written.
	ImagesDir() string
	// TreePath is where the content of the source's tree of this kind and name must be put.
	TreePath(kind files.TreeKind, name string) (string, error)
	// FillFrom makes Restore leave out the memory that can be filled while the processes run. It is
	// filled from pages, which Restore takes over: all must be there then (memory.Store.Keep), or
	// come later by way of Engine.RemotePages. What can be made ready for it is when FillFrom
	// returns; it is called at most once, and takes nothing from pages yet.
	FillFrom(ctx context.Context, pages *memory.Store) error
	// Restore makes the processes from what is now in ImagesDir and in the trees. When all their
	// sockets exist and before the first of them runs it asks for permission. That the container
	// runs is then recorded durably, its network is opened, and it runs; if any of these fails
	// nothing ever will. Restore returns the instant of the resume.
	Restore(ctx context.Context, permission Permission) (time.Time, error)
	// Close ends what PrepareRestore started if the container has not been resumed; Discard removes
	// what is left.
	Close() error
}

// LateArrival is an Arrival whose engine may have to be told to start the container, by Start, as
// late as possible: it tells nobody anything from then until the container runs. Meanwhile nothing
// may be written to the container's trees. Start returns when all that can be done before the state
// is here is done; it does nothing if the container was started by PrepareRestore.
type LateArrival interface {
	Arrival
	Start(ctx context.Context) error
	// Until is when Restore can no longer succeed, once Start has returned; zero: there is no such time.
	Until() time.Time
}

// LateStarter is an engine that has arrivals which are to be started so.
type LateStarter interface {
	StartsLate(definition Definition) bool
}

// Networked is an Arrival whose engine has made its network namespace, which is at this path. One
// that is started late has it then.
type Networked interface{ Netns() (string, error) }

// Errors of Protect, which are wrapped.
var (
	// ErrThawed: another program has thawed processes that nobody held, so the copy has run since it was
	// frozen. It is frozen again, unless another error says that it cannot be.
	ErrThawed = errors.New("another program on this node has thawed the frozen copy")
	// ErrExposed: the copy is frozen, and has not run, but other programs can thaw or kill it.
	ErrExposed = errors.New("other programs on this node can thaw or kill the frozen copy")
)

// Protector is an Engine of whose frozen copies others, as an operator who cleans up or an OOM
// killer, can be kept.
type Protector interface {
	// Protect has the frozen processes of a container that leaves be the last that OOM killers
	// take, and gives those that nobody holds yet to hold, which may trace them. It calls held
	// (nil: nobody waits) as soon as they are held and have not run, before what concerns the OOM
	// killers. What somebody has thawed is frozen again. A copy that has run is remembered, and
	// each call says so. Errors: ErrThawed, ErrExposed; after any other nobody knows whether the
	// copy is frozen. It does nothing to a container that does not leave any more. Resume and Destroy
	// undo all of it.
	Protect(ctx context.Context, id string, hold func(pids []int) error, held func()) error
}

// ProcessResumer is an Engine whose Resume also gives the container back to a program that may hang.
type ProcessResumer interface {
	// ResumeProcesses lets a container that a Departure froze go on, and asks nobody. Resume, or the
	// Departure's Close, does the rest.
	ResumeProcesses(ctx context.Context, id string) error
}

// LeaveNoter is an Engine that notes why containers leave where the note can be read while the program that
// runs them hangs or is away.
type LeaveNoter interface {
	// Leaves are the notes of all containers that leave. Beside an error are those that could be read.
	Leaves() ([]Leave, error)
}

// Marker is an Engine that can show in its own list that a copy is not the container any more.
type Marker interface {
	// MarkMoved shows to which node a container that leaves has moved. It may be repeated, and does nothing
	// to one that does not leave. Resume takes it back.
	MarkMoved(ctx context.Context, id string) error
}

// Leaver is an Engine of whose containers something stays at the source that users may look for at
// the target.
type Leaver interface {
	// LeavesBehind says what stays, a sentence each.
	LeavesBehind(d Definition) []string
}

// Restarter is an Engine that starts containers again by itself, when they end or the machine comes
// up, as their policies say.
type Restarter interface {
	// Settled has it do so with a container that has come here, which it does not before: there may
	// be another copy. One that has ended since, and that it would have started, it starts. It
	// fails as long as a container runs that its engine does not know to run.
	Settled(ctx context.Context, id string) error
}

// Outcome of an arrival.
type Outcome string

// What can have become of an arrival.
const (
	NeverRan Outcome = "never-ran" // and never will: nothing is left that could resume it
	Ran      Outcome = "ran"       // it was resumed; Inspect tells what it is doing now
)
