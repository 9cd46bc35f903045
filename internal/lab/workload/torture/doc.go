// Package torture is a program that does everything to a directory that a file system allows, at random, at
// a given speed, and in several processes at once that interfere with each other.
//
// It tests programs that copy a directory in use: freeze it, complete the copy, compare. It runs in
// separate processes, beside the test (Gang) or in a container (image.OfProgram makes the image). It knows
// nothing of how its files are copied. Each process has the directory as its root, so it can reach nothing
// outside. Not every container that runs it can be checkpointed: CRIU makes open or mapped files without a
// name anew in their old directory, which by then may be a file.
package torture
