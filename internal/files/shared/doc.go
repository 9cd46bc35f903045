// Package shared proves that a directory on one node and a directory on another are the same one,
// and hands its content over when the processes that use it move from one node to the other.
//
// The proof is a file. One node makes it through its own mount, with a token that nobody can guess. The
// other finds the token through its own mount and writes an equally unguessable answer beside it. The first
// node finds the answer in the very file that it has made. The nodes talk to each other in a way that this
// package does not know. A path or a name proves nothing, and neither does a copy that somebody keeps in
// sync: it is another file.
//
// The package knows no engine, no network peer and no migration. From another node it gets one file name,
// which it does not trust: the name must have a form that only this package uses, the file must be below a
// directory that the caller names, and every byte of it must look like one that was made here.
package shared
