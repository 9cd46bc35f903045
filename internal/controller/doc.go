// Package controller sees all nodes of a cluster, decides which containers should move, and asks agents to
// move them. It only asks: whether a container has moved is decided between the two agents, with the
// controller or without it.
//
// What operators want is in the store; where containers are, the nodes say on their streams. One controller
// leads at a time, and only the leader listens: clients and agents try one address after the other.
//
//	controller.go  the life of a process: campaign, serve, start again
//	cluster.go     what is known, and how it changes: each change is durable before it is visible
//	records.go     how a change becomes durable, and who waits for one
//	world.go       the same as package decide sees it
//	loop.go        decide, queue, send
//	failures.go    what did not move, and where it is not tried again
//	cancel.go      moves that users cancel
//	uplink.go      the agents' streams
//	inventory.go   what an agent may say
//	users.go       the calls of users, and of nodes that join
//	callers.go     who may call, and how much
//	roles.go       what users may do, and the record of what they did
//	tokens.go      secrets of users, and of nodes that join
package controller
