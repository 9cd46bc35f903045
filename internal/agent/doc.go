// Package agent runs Godwit on one node: it answers the command line and other nodes, and carries
// out migrations.
//
// What a migration does next is decided by the package migration; this package executes it, keeps
// the journals, and after a crash goes on from them. It wires engine, network, files and wire
// together, and nobody but the command imports it. Where to look:
//
//	agent.go, supervisor.go, fault.go         the life of the daemon, and what tests can break in it
//	service_*.go, session.go, control.go      gRPC: calls that package node/rpc does not answer
//	moves.go, move.go, begin.go, steps.go     the migrations of this node; each feeds events to its machine
//	modes.go                                  the table: what each side does at a step, and what undoes it
//	recover.go, rebuilding.go                 what becomes of journals when the agent starts
//	resolve.go, alarms.go                     operators' decisions; what needs attention
//	source*.go                                the steps at the node that has the container; source_parts.go
//	                                          makes the parts that they work with
//	target*.go, offer.go                      the steps at the node to which it comes; offers and plans
//	tmpfs.go                                  memory for the state
//	restored_sockets.go, thaw.go, receipt.go  after the restore
//	staging.go                                copies ahead of a move
//	away.go                                   where containers went that were here
//	places.go, greeted.go, noticing.go        adapters to packages location, lease, inventory and attachment
//	restarting.go, placing.go, forecasting.go adapters to restart, placement/controller and forecast
//	uplinked.go                               adapter to package uplink, the connection to a controller
package agent
