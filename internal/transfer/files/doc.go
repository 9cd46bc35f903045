// Package files moves the files of one container, its writable layer and volumes: a Sender at the source and
// a Receiver at the target.
//
// While the container runs, rounds go over a connection of their own, until what changes takes little of the
// freeze. What is left goes in the freeze, over the migration's first connection. What an earlier attempt has
// left at the target is not sent again.
//
// How a round is made and applied is for package internal/files/copies. The package knows no engine and no
// step of a migration, and it does not decide which directories move.
package files
