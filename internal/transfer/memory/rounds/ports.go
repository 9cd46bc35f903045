package rounds

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// Running has the memory of processes that run; memory.Source does.
type Running interface {
	Round(ctx context.Context, sink memory.Sink) (memory.RoundStats, error)
	Again(ctx context.Context, sink memory.Sink, lost []memory.TaskMap) (memory.RoundStats, error)
	Leave()
	Leaving() bool
	Use() (memory.Use, error)
}

// Frozen has what is left of the memory when the processes are frozen.
type Frozen interface {
	Final(ctx context.Context, sink memory.Sink) (memory.RoundStats, error)
	Complete(ctx context.Context, sink memory.Sink, left memory.Left) (memory.RoundStats, error)
	SendRemote(ctx context.Context, sink memory.Sink, wanted []memory.RemoteFault, most int) (
		memory.RoundStats, error)
	Remote() (remote, hot []memory.TaskMap, err error)
	Map() ([]memory.TaskMap, error)
}

// Pages is all that rounds need of a container's memory.
type Pages interface {
	Running
	Frozen
	Shared() (inodes []uint64, err error)
	GiveShared(why string) error
	Soon(touched []memory.RemoteFault, most int) ([]memory.RemoteFault, error)
	Close() error
}

// Dump is what CRIU has written.
type Dump interface {
	// LeftOut tells which memory it has left to the rounds.
	LeftOut() (memory.Left, error)
	// Touched tells which pages are touched first when the container is restored.
	Touched() ([]memory.RemoteFault, error)
}

// Processor is the processor time of the container.
type Processor interface {
	CPUTime(ctx context.Context) (time.Duration, error)
	// Throttle lets the container use so many processors; 0: as many as it may.
	Throttle(ctx context.Context, cpus float64) error
}

// Settings are the user's, who may change them while the rounds are under way.
type Settings interface {
	Get() migration.Settings
	Set(settings migration.Settings)
}

// Link is the way to the target.
type Link interface {
	// PageBytes is how many bytes the pages have taken on the wire so far.
	PageBytes() uint64
	// BytesPerSecond is how much gets through.
	BytesPerSecond() float64
}

// Sections writes a section between those of pages; stream.Sections does.
type Sections interface {
	Whole(kind, name string, content []byte) error
}
