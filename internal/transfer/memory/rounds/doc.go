// Package rounds runs the rounds of a pre-copy: it sends a container's memory in rounds while the container
// runs, decides after each round what comes next, and sends the rest in the freeze.
//
// After a round memory.Decide chooses: another round, the switchover, or, if the rounds do not converge, to
// throttle the container (throttle.go), to switch to post-copy, or to give up. Turn ends the rounds early, at
// a user's request or at a deadline. Split limits for how long both nodes may be needed after the handover.
// Auto holds the user's demands and the forecast in mode auto.
//
// A precopy.Sender carries the pages. The package knows no engine and no step of a migration; ports.go lists
// what it needs of them.
package rounds
