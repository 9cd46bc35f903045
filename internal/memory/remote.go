package memory

import "context"

// RemoteFault is a page that a process waits for, or soon will, and that is still at the source.
type RemoteFault struct {
	Task    Task // the task whose page it was when it was left there
	Address uint64
}

// RemotePages passes pages that stayed at the source to the processes that wait for them at the target. It
// is a connection to the process that fills the memory of one container (Arrival.FillFrom in package
// engine), which outlives the agent. A new connection can be made at any time, and the last one counts. The
// methods may be called concurrently, but Put by one goroutine at a time.
type RemotePages interface {
	Sink
	// Missing lists the pages that were still at the source when the connection was made.
	Missing() []TaskMap
	// Next waits for the next remote fault: the page must be fetched at once. Each page is returned once
	// for a connection, and again after a new connection if a process still waits for the page. Next
	// returns io.EOF when no page is missing any more, or no process needs one: then nothing more has
	// to be put, and all pages that were put are in place, or in the memory of what fills.
	Next(ctx context.Context) (RemoteFault, error)
	// GiveUp says that the missing pages are lost. With fail each access to one of them is an error
	// from now on (SIGBUS); otherwise the container is killed.
	GiveUp(ctx context.Context, fail bool) error
	Close() error
}
