// Package control is how the two nodes of a migration talk to each other: over a session, which is one gRPC
// stream for each migration, and by single calls when the session is lost.
//
// Both ends send signs of life, because a broken link reports nothing. If the peer is silent for too long,
// the session ends, and the migration's state machine hears of that. This package does not repeat lost
// messages: the state machines do. It knows one message, the request for a reservation, which opens the
// session; it knows no other step of a migration, and no container.
package control
