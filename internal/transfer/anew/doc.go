// Package anew has both ends of mode restart, in which the files of a container move and its processes start
// anew: a Source, which stops the container and starts it again if the move fails, and a Target, which starts
// it on probation.
//
// Until the container at the target is healthy, it can send requests, but gets none. New connections wait at
// both nodes: package switchover holds them at the source, this package at the target. So if the container
// never becomes healthy, no client has had an answer that is lost with it.
//
// The migration decides when each method is called. Package transfer/files moves the files.
package anew
