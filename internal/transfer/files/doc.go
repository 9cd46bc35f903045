// Package files moves the files of one container, its writable layer and volumes: a Sender at the source and
// a Receiver at the target.
//
// While the container runs, rounds go over a connection of their own, until the last changes would take
// little of the freeze. Those changes go in the freeze, over the migration's first connection. The Sender
// does not send files again that an earlier attempt left at the target.
//
// Package files/copies makes and applies each round. This package knows no engine and no step of a migration,
// and does not decide which directories move.
package files
