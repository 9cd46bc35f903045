// Package agent runs Godwit on one node: it answers the command line and other nodes, and carries
// out migrations.
//
// Package migration decides what a migration does next, and package migrate executes it and keeps the
// journals. This package has the work of each step, and wires engine, network, files, connections and
// services together. Nobody but the command imports it. Where to look:
//
//	agent.go, open.go, serve.go, fault.go     the agent's parts, its life, and what tests can break in it
//	engines.go, peers.go, places.go           the engines of the node; other nodes; where containers are
//	services.go, connections.go               who answers calls, and who serves data connections
//	moving.go, begin.go                       the work of a migration's side; how migrations begin
//	modes.go, steps.go                        the table: what each side does at a step, and what undoes it
//	*_answers.go, lines.go                    answers to operators and users; lines to the other node
//	source*.go                                the steps at the node that has the container; source_parts.go
//	                                          makes the parts that they work with
//	target*.go                                the steps at the node to which it comes
//	tmpfs.go                                  memory for the state
//	restored_sockets.go                       after the restore
//	staging.go, leaving.go                    adapters to packages staging and departure
//	greeted.go, restarting.go, placing.go     adapters to packages cluster, restart and placement/controller
//	forecasting.go, uplinked.go               adapters to packages forecast and uplink
package agent
