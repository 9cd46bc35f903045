// Package uplink is an agent's connection to the controller: it dials out, tells the controller what the
// node has, and carries out the controller's commands.
//
// The controller only asks. A command is a migration that a user could ask for as well, and whether the
// container has moved is decided between the two agents, with the controller or without it. A command has
// an epoch, a generation and an id: the journal refuses commands of an earlier leader and of an earlier
// intent for the container, and answers a repeated id with what came of it, also after a restart. A command
// that is cancelled before it arrives is remembered, too, and never begins.
//
//	config.go   which controllers there are: a file that "godwit node connect" writes
//	journal.go  the commands of the past
//	execute.go  what is done about a command
//	state.go    what the controller is told of the node
//	parts.go    the same in messages that are not too large
//	uplink.go   the stream, and what changes
//
// Without the file nothing happens. The package must not know the controller's other side.
package uplink

import (
	"context"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// Node is the agent.
type Node interface {
	Agent
	// Migrate begins a migration whose id is in the request.
	Migrate(ctx context.Context, request *api.MigrateRequest) error
	// Cancel undoes a migration that is under way. Error: it is too late, or there is none.
	Cancel(id string) error
	// Report returns the report of a migration, and whether the migration has ended here; known is false
	// if the node knows of none with this id.
	Report(id string) (report migration.Report, ended, known bool)
}
