// Package stream carries sections, named sequences of bytes, in both directions of one connection.
//
// The package knows nothing about the contents of sections, the peer, or when something should be sent, and
// must not import anything that does. Its connections are already authenticated and encrypted.
//
// # Layers
//
// A section becomes records (begin, data, end). Records are gathered in chunks, a chunk is
// compressed and becomes the payload of a frame. So many small sections travel in one frame,
// compressed together, and records never cross frames.
//
//	connection  preamble, frame, frame, …
//	frame       type, codec, two zero bytes, length on the wire, length raw (12 bytes), payload
//	payload     record, record, …
//
// # Latency
//
// A chunk is sent when it is full, on Flush, at the End of the last section (Finish), or as soon as it
// holds minChunk bytes and nothing is in flight. So a slow link never waits for a chunk to fill, and a fast
// link gets large chunks.
//
// # Memory
//
// A session holds at most workers+2 chunks for writing and readAhead frames for reading, each with
// up to 1 MiB raw and 1 MiB compressed: with four workers 12 MiB and 8 MiB, and in practice less,
// because chunks are mostly smaller. The tables of the slower codecs take up to 14 MiB for each
// core that compresses; sessions beside each other share them. Nothing that a peer announces makes
// a session allocate more: lengths are checked before anything is allocated.
package stream
