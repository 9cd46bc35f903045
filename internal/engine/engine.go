// Package engine is the contract between Godwit and the programs that run containers.
//
// It keeps migrations independent of Docker, runc or LXC: the agent uses this interface, and each package
// below this one implements it for one engine. An adapter knows no other adapter, no network peer and no
// migration; it describes a container, freezes and dumps it, and restores it from a dump.
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

// Errors that callers act on. Adapters wrap them with the object, the place and the remedy.
var (
	ErrNotFound   = errors.New("no such container")
	ErrNameTaken  = errors.New("name is taken")
	ErrNotRunning = errors.New("container is not running")
	ErrBusy       = errors.New("container is busy")
	ErrNotFilling = errors.New("the container's memory is not being filled")
	ErrUnsettled  = errors.New("container has connections that the move would lose")
	ErrNoVolume   = errors.New("no such volume")
	ErrInvalid    = errors.New("container definition is not valid")
	// ErrNoEngine means that this node does not know the container's engine.
	ErrNoEngine = errors.New("no such engine")
	// ErrAway means that a known engine is not there: it was stopped, or never installed. Its containers
	// may still exist, and may run.
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
	// its record cannot be read: only List returns it, and nothing touches it
	Damaged State = "damaged"
)

// MaxPassedCalls bounds Definition.Passed, which comes from another node. There are fewer dangerous calls.
const MaxPassedCalls = 64

// Definition describes a container so that another node can make the same one. It holds no path of the
// source node, except those of host directories, which are the same on every node. It travels between nodes
// as JSON, and the receiver validates it.
type Definition struct {
	// EngineName names the container's engine; empty means the embedded engine, whose definitions need no
	// name.
	EngineName string `json:"engine_name,omitempty"`
	// Namespace is the engine's namespace of the container and its image, if the engine has several.
	Namespace string `json:"namespace,omitempty"`

	ID    string `json:"id"`   // 64 lower-case hexadecimal digits, the same on every node
	Name  string `json:"name"` // unique on a node: [a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}
	Image string `json:"image"`
	// digest of the image's configuration, or the engine's own name for the image
	ImageID string `json:"image_id"`
	// DiffIDs, lowest first; empty: the engine manages images itself
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
	// How the container is stopped, and when a started container counts as healthy.
	StopSignal   string  `json:"stop_signal,omitempty"`           // empty: SIGTERM
	StopTimeout  float64 `json:"stop_timeout_seconds,omitempty"`  // 0: the default
	StartTimeout float64 `json:"start_timeout_seconds,omitempty"` // 0: the default
	Health       *Health `json:"health,omitempty"`
	// Restart is the embedded engine's policy for restarts, see ParseRestartPolicy. Other engines carry
	// theirs in Engine.
	Restart string `json:"restart,omitempty"`
	// Ports of the node that lead to the container, if its address is of the engine's own network.
	Ports []Published `json:"ports,omitempty"`
	// Passed are dangerous system calls that the filters (seccomp) of a running container's processes
	// allow, by name, as far as the source knows: advice, with which the target refuses the container
	// before anything moves. The filters in the images decide (criu/vet). nil: not known.
	Passed []string `json:"passed_system_calls,omitzero"`
	// Engine is the engine's own data about a running container that the same engine at the target needs
	// before the state arrives. Opaque to all others, bounded in size, and validated by the engine that
	// gets it.
	Engine json.RawMessage `json:"engine,omitempty"`
}

// Limits of the container's cgroup; zero means none.
type Limits struct {
	MemoryBytes int64   `json:"memory_bytes"`
	CPUs        float64 `json:"cpus"`
	Pids        int64   `json:"pids"`
}

// Network is the address that a container keeps for life. Without an address the container's network is the
// engine's own: nothing else makes it, routes to it, or holds its packets.
type Network struct {
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
	MTU     int        `json:"mtu"`
	// Bridge is the engine's own network to which the address belongs: the engine assigns the address, and
	// makes the interface, on each node. Empty: the address is from Godwit's pool.
	Bridge     string `json:"bridge,omitempty"`
	PrefixBits int    `json:"prefix_bits,omitempty"` // of that network
	Routed     bool   `json:"routed,omitempty"`      // see RoutedNetwork
}

// Pooled reports whether there is an address from Godwit's pool, which the agents route.
func (n Network) Pooled() bool { return n.Address.IsValid() && n.Bridge == "" }

// OnBridge reports whether there is an address of the engine's own network.
func (n Network) OnBridge() bool { return n.Address.IsValid() && n.Bridge != "" }

// RoutedNetwork is a network of an engine that exists on all nodes, with the same subnet. The engine of
// each node assigns a part of its addresses, and the agents route all of them.
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

// Container is an engine's description of one container.
type Container struct {
	Definition Definition `json:"definition"`
	State      State      `json:"state"`
	// PID of its first process, in the agent's PID namespace; 0 if it does not run
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	ExitCode int       `json:"exit_code"`
	// Leaving is set from PrepareDump or Halt until Resume, Revive or Destroy: it is the Leave of the
	// departure.
	Leaving *Leave `json:"leaving,omitempty"`
	// Migration is the state of the migration that moves the container away, as in package migration. The
	// agent sets it.
	Migration string `json:"migration,omitempty"`
	// NotRunning is why a container of the embedded engine does not run. The agent sets it.
	NotRunning string `json:"not_running,omitempty"`
}

// LogOptions select what Logs emits.
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

// Problem is one obstacle to moving a container.
type Problem struct {
	What   string `json:"what"`   // for example: process 12 (worker), descriptor 7: io_uring
	Why    string `json:"why"`    // for example: CRIU cannot dump io_uring instances
	Remedy string `json:"remedy"` // what the user can do
}

// Engine is one container engine on one node. All methods may be called concurrently, and repeated after
// the caller crashed: Resume, Destroy and Discard find out for themselves what exists, and having nothing
// to do is success.
type Engine interface {
	// Name of the engine: embedded, docker, podman, containerd, lxc.
	Name() string
	// Capabilities are what else the engine can do.
	Capabilities() Capabilities
	// List returns all containers, sorted by name. Error: ErrAway.
	List(ctx context.Context) ([]Container, error)
	// Inspect finds a container by name, id, or unique prefix of an id. Errors: ErrNotFound; ErrAway if the
	// engine cannot answer.
	Inspect(ctx context.Context, ref string) (Container, error)
	// Stop asks the first process to end, by the container's own stop signal, and kills it when grace is
	// over; negative: the container's own grace period.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove deletes a container that does not run; with force, one that does.
	Remove(ctx context.Context, id string, force bool) error
	// Logs calls emit for each entry, oldest first, until there are no more (or, with Follow, until
	// ctx ends or the container has ended and all is emitted).
	Logs(ctx context.Context, id string, options LogOptions, emit func(LogEntry) error) error
	// Exec runs a process in a running container and returns its exit code.
	Exec(ctx context.Context, id string, process Exec) (int, error)

	// Examine lists obstacles to moving this running container: what CRIU cannot dump, exec sessions, and
	// so on. It changes nothing.
	Examine(ctx context.Context, id string) ([]Problem, error)
	// Processes returns the PIDs, in the agent's PID namespace, of all processes of a container at this
	// moment.
	Processes(ctx context.Context, id string) ([]int, error)
	// PrepareDump prepares a running container's move. When it returns, everything possible before the
	// freeze is done.
	PrepareDump(ctx context.Context, id string, options DumpOptions) (Departure, error)
	// CPUTime returns how much processor time a running container has used on this node. Error:
	// errors.ErrUnsupported if it is not counted.
	CPUTime(ctx context.Context, id string) (time.Duration, error)
	// Throttle limits a container to so many processors; a lower limit of the container's own still holds.
	// 0 ends the throttling, regardless of who began it, and is allowed in any state. Error:
	// errors.ErrUnsupported if processor time cannot be limited.
	Throttle(ctx context.Context, id string, cpus float64) error
	// Trees returns the directories that make up the container's own state, which a move must copy. The
	// caller releases them (files.LetGo).
	Trees(ctx context.Context, id string) ([]files.Tree, error)
	// Resume lets a container continue that a Departure froze, whatever has happened to it since: sockets
	// that a dump left in repair mode work again, and the dump's leftovers in the file system are removed.
	Resume(ctx context.Context, id string) error
	// Destroy kills a frozen container and removes it completely, without its processes or the peers of its
	// connections noticing. Its volumes have moved with it, so they are removed, too, except those in stay
	// (by Volume.Key), those of another container on this node, and host directories that the container
	// could only read.
	Destroy(ctx context.Context, id string, stay []string) error

	// Reserve lists obstacles to making this container here: its name is taken, a volume exists already and
	// does not stay, a feature is missing, and so on.
	Reserve(ctx context.Context, definition Definition) ([]Problem, error)
	// PrepareRestore prepares a container that will be restored here. When it returns, everything possible
	// before the state's arrival is done. netns must be the path of the container's network namespace, or
	// empty if the engine makes it (Definition.Network). The image's layers may come later, but before
	// Restore.
	PrepareRestore(ctx context.Context, definition Definition, netns string) (Arrival, error)
	// Arrived returns the outcome of an arrival, even after the agent crashed. It ends an arrival whose
	// agent is gone before it answers, so that NeverRan is final.
	Arrived(ctx context.Context, id string) (Outcome, error)
	// Discard removes an arrival that never ran, and everything that was made for it.
	Discard(ctx context.Context, id string) error
	// Salvage ends an arrival that never ran, as Arrived does, and calls take for each directory on disk
	// that has received its files and that Discard would empty or remove. take may move the contents away.
	Salvage(ctx context.Context, id string, take func(files.Tree) error) error
	// Memory returns the progress of filling a container's memory while it runs (Arrival.FillFrom). Until
	// the memory is complete, Examine reports that, and PrepareDump refuses: ErrBusy.
	Memory(ctx context.Context, id string) (memory.FillReport, error)
	// RemotePages connects to the pager of a container, to bring it the pages that come after the restore
	// (memory.Store.Remote). It waits until the pager knows these pages, which happens during Restore. It
	// works from Arrival.FillFrom on until the memory is complete, even after the agent crashed. Error:
	// ErrNotFilling if no pager runs; Memory then reports whether the memory is complete.
	RemotePages(ctx context.Context, id string) (memory.RemotePages, error)

	Anew

	// VolumePath returns where the content of a volume is on this node, or would be. Error:
	// errors.ErrUnsupported for a tmpfs.
	VolumePath(volume Volume) (string, error)
	// Volumes returns all named volumes of this node, sorted by name.
	Volumes(ctx context.Context) ([]StoredVolume, error)
	// RemoveVolume deletes a named volume. Errors: ErrNoVolume, ErrBusy while a container uses it.
	RemoveVolume(ctx context.Context, name string) error
}

// DumpOptions select what a dump leaves to the caller.
type DumpOptions struct {
	// LeaveMemory leaves the content of private anonymous memory to the caller, who sends it another way
	// (memory.Source): Dump writes only its location.
	LeaveMemory bool
	// Whole makes Dump examine all memory that is left to the caller. Otherwise it does not examine large
	// memory.
	Whole bool
	// Leave is the value of Container.Leaving from now on.
	Leave Leave
}

// Departure is a running container that is about to be frozen. Settle, Freeze and Dump are called in this
// order, Dump once; Settle is optional.
type Departure interface {
	// Settle waits, for some seconds at most, until the container has no connections that a dump would
	// lose: half open, not accepted, closed by the container but not yet by their peers. It is called when
	// new connections no longer reach the container, but all other traffic does.
	Settle(ctx context.Context) error
	// Freeze stops the container's processes and returns when all are stopped and all their output to
	// stdout and stderr is in the log. It returns the instant at which they stopped. Error: ErrUnsettled,
	// after Settle and a few times at most, if there are new connections for which Settle waits, or such a
	// connection within the container that does not end while outside traffic is held; the container then
	// runs, and both have to be called again.
	Freeze(ctx context.Context) (time.Time, error)
	// LeaveShared leaves the content of shared memory without a file to the caller, as DumpOptions do with
	// the rest: the complete memory of these inodes. False: that is not possible, and Dump writes it. It
	// may be called between Freeze and Dump.
	LeaveShared(inodes []uint64) (bool, error)
	// Dump writes the execution state to a directory in memory. When it returns, the container is still
	// frozen, and may be resumed (Resume) or destroyed (Destroy). Files in the directory whose names begin
	// with pages- only grow while Dump runs, so they can be sent meanwhile.
	Dump(ctx context.Context, directory string) error
	// LeftOut returns the memory that a Dump to this directory has left to the caller.
	LeftOut(directory string) (memory.Left, error)
	// Touched returns the pages that are touched first when the container is restored from a Dump to this
	// directory, the most important ones first. The list is advice: some pages may not exist, and some are
	// listed twice.
	Touched(directory string) ([]memory.RemoteFault, error)
	// Close ends what PrepareDump started; it neither resumes nor destroys the container.
	Close() error
}

// Permission holds the callbacks that a restore needs before the first process runs.
type Permission struct {
	Ask func() error // whether it may run; an error means no
	// Open opens the container's network. Nothing may reach its sockets before it is certain that the
	// container runs: they acknowledge data, and then nobody sends that data to the source again. A
	// container that starts anew has no Open.
	Open func() error
}

// Arrival is a container that waits for its state.
type Arrival interface {
	// ImagesDir returns the directory, in memory, for the execution state.
	ImagesDir() string
	// TreePath returns where the content of the source's tree of this kind and name must be put.
	TreePath(kind files.TreeKind, name string) (string, error)
	// FillFrom makes Restore leave out memory that can be filled while the processes run. That memory is
	// filled from pages, which Restore takes over: all pages must be there then (memory.Store.Keep), or
	// come later through Engine.RemotePages. When FillFrom returns, the preparations are done; it is called
	// at most once, and does not read pages yet.
	FillFrom(ctx context.Context, pages *memory.Store) error
	// Restore creates the processes from the current contents of ImagesDir and the trees. When all their
	// sockets exist and before the first process runs, it asks for permission. Then the fact that the
	// container runs is recorded durably, its network is opened, and it runs; if any of these steps fails,
	// it never will. Restore returns the instant of the resume.
	Restore(ctx context.Context, permission Permission) (time.Time, error)
	// Close ends what PrepareRestore started if the container has not been resumed; Discard removes the
	// rest.
	Close() error
}

// LateArrival is an Arrival whose engine may have to be told to start the container, by Start, as late as
// possible: the engine does not answer from then until the container runs. Meanwhile nothing may be written
// to the container's trees. When Start returns, everything possible before the state's arrival is done;
// Start does nothing if PrepareRestore has started the container.
type LateArrival interface {
	Arrival
	Start(ctx context.Context) error
	// Until returns when Restore can no longer succeed, once Start has returned; zero: there is no limit.
	Until() time.Time
}

// LateStarter is an engine whose arrivals may have to be started late.
type LateStarter interface {
	StartsLate(definition Definition) bool
}

// Networked is an Arrival whose engine has made its network namespace, and returns the path. A late arrival
// has it after Start.
type Networked interface{ Netns() (string, error) }

// Errors of Protect, which are wrapped.
var (
	// ErrThawed: another program has thawed processes that nothing traced, so the copy has run since it was
	// frozen. It is frozen again, unless another error says that freezing failed.
	ErrThawed = errors.New("another program on this node has thawed the frozen copy")
	// ErrExposed: the copy is frozen, and has not run, but other programs can thaw or kill it.
	ErrExposed = errors.New("other programs on this node can thaw or kill the frozen copy")
)

// Protector is an Engine that can protect its frozen copies from others, such as an operator who cleans up
// or an OOM killer.
type Protector interface {
	// Protect makes the frozen processes of a departing container the last choice of OOM killers, and
	// passes processes that nothing holds yet to hold, which may trace them. It calls held (nil: nobody
	// waits) as soon as they are held and have not run, before it deals with OOM killers. It freezes again
	// processes that others have thawed. A copy that has run is remembered, and each call returns that
	// error. Errors: ErrThawed, ErrExposed; after any other error it is not known whether the copy is
	// frozen. It does nothing to a container that no longer leaves. Resume and Destroy undo its effects.
	Protect(ctx context.Context, id string, hold func(pids []int) error, held func()) error
}

// ProcessResumer is an Engine whose Resume also returns the container to a program that may hang.
type ProcessResumer interface {
	// ResumeProcesses lets a container continue that a Departure froze, without calling another program.
	// Resume, or the Departure's Close, does the rest.
	ResumeProcesses(ctx context.Context, id string) error
}

// LeaveNoter is an Engine whose notes of departures can be read while the program that runs its containers
// hangs or is away.
type LeaveNoter interface {
	// Leaves returns the notes of all departing containers. With an error, it returns those that could be
	// read.
	Leaves() ([]Leave, error)
}

// Marker is an Engine that can show in its own list that a copy is no longer the container.
type Marker interface {
	// MarkMoved shows to which node a departing container has moved. It may be repeated, and does nothing
	// to a container that does not leave. Resume undoes it.
	MarkMoved(ctx context.Context, id string) error
}

// Leaver is an Engine whose containers leave something at the source that users may expect at the target.
type Leaver interface {
	// LeavesBehind describes what stays, one sentence each.
	LeavesBehind(d Definition) []string
}

// Restarter is an Engine that restarts containers by itself, when they end or the machine boots, according
// to their policies.
type Restarter interface {
	// Settled enables restarts of a container that has come here; they are disabled before, because another
	// copy may exist. It starts a container that has ended since and would have been restarted. It fails as
	// long as the engine does not know that a running container runs.
	Settled(ctx context.Context, id string) error
}

// Outcome of an arrival.
type Outcome string

// The possible outcomes of an arrival.
const (
	NeverRan Outcome = "never-ran" // and never will: nothing is left that could resume it
	Ran      Outcome = "ran"       // it was resumed; Inspect returns its current state
)
