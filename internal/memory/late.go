package memory

import "context"

// Want is a page that a process waits for, or will soon, and that is still at the source.
type Want struct {
	Task    Task // whose page it was when it was left there
	Address uint64
}

// LatePages is the way of pages that stayed at the source to the processes that wait for them at
// the target. It stays connected to what fills the memory of one container (Arrival.FillFrom in
// package engine), which outlives the agent: it can be connected to again at any time, and the last
// connection is the one that counts. Its methods may be called concurrently, but Put by one
// goroutine at a time.
type LatePages interface {
	Sink
	// Missing lists the pages that were still at the source when the connection was made.
	Missing() []TaskMap
	// Next waits for the next page that is to be fetched at once: each once for a connection, and
	// after a new connection again if somebody still waits for it. It returns io.EOF when no page
	// is missing any more, or nobody needs one: then nothing more has to be put, and all that was
	// put is where it belongs or in the memory of who fills.
	Next(ctx context.Context) (Want, error)
	// GiveUp says that what is missing is lost. With fail each access to a missing page is an error
	// from now on (SIGBUS); otherwise the container is killed.
	GiveUp(ctx context.Context, fail bool) error
	Close() error
}
