// Package rounds sends a container's memory in rounds while the container runs, decides after each round what
// comes next, and sends what is left in the freeze.
//
// After a round it asks memory.Decide: another round, the switchover, or something else because the rounds do
// not converge: slow the container down (throttle.go), have the rest follow after the handover, or give up.
// Split bounds for how long both nodes may be needed if memory follows; Turn lets a user, or the clock, end
// the rounds for that; Auto is what a mode goes by that was chosen for the user.
//
// The pages travel by a precopy.Sender. The package knows no engine and no step of a migration; what it needs
// of them is in ports.go.
package rounds
