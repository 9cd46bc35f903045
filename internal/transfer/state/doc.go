// Package state moves the execution state: the files that CRIU writes in a dump and reads in a restore.
//
// A Sender sends them as pieces while they grow; a Receiver writes them, and accepts nothing but what CRIU
// calls its files. Known has pages of them that went ahead, so that they need not go in the freeze, and
// Layers has files of the container's image, to whose pages these are deltas.
//
// The package knows no connection and no migration: the pieces go where SectionWriter says, and come from a
// Reader. What a peer sends is checked and bounded here.
package state
