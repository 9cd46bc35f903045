// Package tree is a program that keeps a directory full of files, rewrites them one after the other
// at a steady rate, and knows what each of them must hold.
//
// It runs as a process of its own: in a container whose files are moved (image.OfProgram makes the
// image), or beside what copies its directory by other means. How often it has written is in a file
// beside the others, so one that starts anew on a copy of the directory goes on where the copy was
// made, and can tell whether the copy is whole. It knows nothing of containers, migrations or how
// its files are carried.
package tree
