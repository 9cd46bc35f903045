// Package migrate runs the migrations of one node: it feeds events to their state machines (package
// migration), executes what comes out in order, and keeps the journals. It decides nothing.
//
// What a side of a migration does at each step is its Work, which this package only calls. So a migration
// can be tested without containers, connections and root. Where to look:
//
//	work.go                  what a migration needs of its side, and of the node
//	move.go, steps.go        one migration: events, actions, steps and undos, permissions
//	end.go                   its end: the report, garbage collection
//	restart.go               it goes on from its journal when that could not be written, or after a panic
//	moves.go, prune.go       the migrations of this node, and those that are forgotten
//	recover.go, rebuild.go   journals when the agent starts, or when they were lost
//	outcome.go               answers for a source that does not know where its container runs
//	resolve.go, thaw.go      operators' decisions
//	alarms.go                what an operator should look at
//	containers.go, away.go   containers of this node, and where they went
package migrate
