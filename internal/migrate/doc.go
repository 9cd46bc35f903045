// Package migrate runs the migrations of one node: it feeds events to their state machines (package
// migration), executes the resulting actions in order, and keeps the journals. The state machines decide.
//
// Work does the steps of one side of a migration, and this package only calls it. So a test of a migration
// needs no containers, no connections and no root. Where to look:
//
//	work.go                  what a migration needs of its side, and of the node
//	move.go, steps.go        one migration: events, actions, steps and undos, permissions
//	end.go                   its end: the report, garbage collection
//	restart.go               a migration continues from its journal after a failed write or a panic
//	moves.go, id.go          the migrations of this node, how many may arrive, and their ids
//	prune.go                 when a migration is forgotten
//	starts.go                answers for package restart, which starts containers again
//	recover.go               journals when the agent starts, also those that were lost (journal/rebuild)
//	outcome.go               answers for a source that does not know where its container runs
//	resolve.go, thaw.go      operators' decisions
//	alarms.go                what an operator should look at
//	containers.go, away.go   containers of this node, and where they went
package migrate
