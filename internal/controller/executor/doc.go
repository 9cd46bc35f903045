// Package executor decides when intents are carried out: it keeps the queue, obeys the limits of nodes and
// links, and says what each intent waits for. It is pure: it has no clock and sends nothing; the
// controller sends the commands that Next returns, and tells what became of them.
//
// A command can be repeated. Its id is that of the intent and of the migration, and an agent that gets it
// again answers with what came of it, so the controller sends a command again whenever it does not know
// whether it arrived: after a node connects, and after another controller leads. The epoch fences
// commands of an earlier leader, the generation those of an earlier intent for the container.
//
// A job that is cancelled before it is sent is gone. One that was sent stays, and holds its place in the
// limits, until its source has said how the migration ended. Its command is not sent again: the source is
// asked to cancel instead, and remembers that the command must not begin any more.
package executor

// Command asks the agent of From to move a container. It may arrive late, or more than once.
type Command struct {
	ID         string // of the intent and of the migration
	Epoch      uint64 // of the controller's term
	Generation uint64 // of the container
	Container  string // its id
	From, To   string
	Mode       string
	// BitsPerSecond limits the migration; 0: no limit.
	BitsPerSecond float64
	// Cancel asks to cancel the migration, and not to begin one that has not begun.
	Cancel bool
}

// Job is an intent in the queue.
type Job struct {
	ID         string
	Container  string
	Name       string // of the container, for people
	From, To   string
	Mode       string
	Generation uint64
	Priority   int
	Created    int64 // order among jobs of one priority
	// Sent says that the agent of From may have begun the migration.
	Sent bool
	// Cancelled says that the agent of From is asked to cancel the migration. The job goes on until the agent
	// has said how the migration ended: it may have been too late.
	Cancelled bool
}

// Limits bound what is under way at once.
type Limits struct {
	OutPerNode, InPerNode int
	// LinkBitsPerSecond is what migrations from one node to another may use together; 0: no limit. With a
	// limit, they go one after the other, each with all of it: the freeze of each is as short as if it
	// were alone.
	LinkBitsPerSecond float64
}

// DefaultLimits are two migrations into a node and two out of it.
func DefaultLimits() Limits { return Limits{OutPerNode: 2, InPerNode: 2} }
