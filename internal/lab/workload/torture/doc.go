// Package torture is a program that does to a directory whatever a file system lets it do, at
// random, as fast as it is told to, and in several processes at the same time which get in each
// other's way.
//
// It is for whoever copies a directory that is in use: freeze it, complete the copy, compare. It
// runs as processes of their own, beside the test (Gang) or in a container (image.OfProgram makes
// the image). It knows nothing of how its files are carried. Each process has the directory as its
// root, so nothing outside of it can be reached. Not every container with it in it can be
// checkpointed: files that are open or mapped and have lost their names are made anew by CRIU in
// the directory where they were, which by then may be a file.
package torture
