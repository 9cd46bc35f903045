// Package shared proves that a directory on one node and a directory on another are the same one,
// and hands its content over when the processes that use it move from one node to the other.
//
// The proof is a file. One node makes it, with a token that nobody can guess, through its own
// mount; the other finds the token through its own mount and writes an answer beside it that nobody
// can guess either; the first node finds the answer, in the very file that it has made. What the
// two say to each other goes another way, which this package does not know. A path or a name proves
// nothing, and neither does a copy that somebody keeps in step: it is another file.
//
// The package knows no engine, no network peer and no migration. What it is told by another node is
// one file name, of which it believes nothing: it must be of a form that only this package uses,
// below a directory that the caller names, and the file that it names must look in every byte as
// one that was made here.
package shared
