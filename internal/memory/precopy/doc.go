// Package precopy sends pages to a store at another node while their processes run, or in the freeze, over
// data connections: the Sender at the source, Incoming at the target. Pages that come after the restore are
// for package postcopy.
//
// The first section brings the key with which pages are hashed. Frames of memory/pipeline follow, over this
// and more connections. The target answers each barrier by what it lacks of all that came before, and the
// source sends that again.
//
//	key     source to target: pipeline.Key
//	claims  target to source, if the source was told of a residual copy: digests of its pages
//	pages   source to target: a frame, on any data connection
//	placed  target to source, name: number of a barrier; content: what is missing (memory.EncodeMap)
//
// The package knows no migration and makes no connection. Its users have sections of their own between these.
//
// # Claims
//
// A target that has a residual copy of the container says so before, and answers the key with claims: the
// digests of the pages that it has, 16 bytes for each, hashed with that key. The source refers to those
// pages instead of sending them. The target checks each reference against the digest of the page that it
// finds (pipeline.Receiver). So a residual copy that is damaged, old or gone makes pages travel again, and
// never makes wrong memory.
package precopy
