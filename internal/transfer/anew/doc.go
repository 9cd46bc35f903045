// Package anew has both ends of mode restart, in which the files of a container move and its processes start
// anew: a Source, which stops the container and starts it again if the move fails, and a Target, which starts
// it on probation.
//
// Before the container at the target is healthy, it can ask others, and nobody can ask it. Those who want to
// connect wait at both nodes meanwhile: at the source in package switchover, at the target here. So nothing
// that anybody has been told is lost if the container does not become healthy.
//
// When something is done and undone, a migration decides. How files move is for package transfer/files.
package anew
