// Package restart decides which containers of the node's own engine start again after they have ended or the
// machine was booted, when, and whether they may start here at all: there must never be two copies of a
// container. It also tells other nodes, which ask for the same reason, what this node has of a container.
//
// The engine knows the policies and what outlives a boot; package location asks the other nodes. This package
// knows nothing of the steps of a migration: Migrations tells which containers they concern.
package restart
