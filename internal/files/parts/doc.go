// Package parts finds pieces of one archive in others, so that of a layer that is much like one
// that is there only what is new has to travel. It knows no store and no connection.
//
// An archive is cut where its content says so (package chunk), so that an insertion moves no cuts
// but those around it. What comes of a list of parts is never trusted: parts are compared with
// their digests when the archive is put together, and whoever has a use for the whole compares its
// digest.
package parts
