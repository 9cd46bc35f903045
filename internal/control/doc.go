// Package control is how the two nodes of a migration talk to each other: over a session, which is one gRPC
// stream for each migration, and by single calls when the session is lost.
//
// Both ends give signs of life, because a link that breaks tells nobody: silence ends the session, and the
// state machine of the migration hears of the loss. Messages that are lost are not repeated here: the
// machines repeat what matters. This package knows no step of a migration and no container.
package control
