// Package precopy sends pages to a store at another node while their processes run, or in the freeze, over
// data connections: the Sender at the source, Receiver and Incoming at the target. Migrations and staged
// copies use the same code. Lanes, as QEMU's multifd channels, are more connections for when one cannot fill
// the link. Package rounds decides which pages are sent, and when. Package push sends pages after the
// restore.
//
// The first section brings the key with which pages are hashed. Frames of memory/pipeline follow, over this
// and more connections. The target answers each barrier by what it lacks of all that came before, because it
// could not make it from a delta or a reference, and the source sends that again. protocol.go lists the
// sections.
//
// The package knows no engine and no step of a migration. It makes no connection: what makes more of them
// comes as an argument (Lanes). Its users have sections of their own between these.
//
// # Claims
//
// A target that has a residual copy of the container says so before, and answers the key with claims: the
// digests of the pages that it has, 16 bytes for each, hashed with that key. The source refers to those
// pages instead of sending them. The target checks each reference against the digest of the page that it
// finds (pipeline.Receiver). So a residual copy that is damaged, old or gone makes pages travel again, and
// never makes wrong memory.
package precopy
