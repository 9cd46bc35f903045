// Package tree is a program that keeps a directory full of files, rewrites them one after the other at a
// steady rate, and knows the expected content of each.
//
// It runs as a separate process: in a container whose files are moved (image.OfProgram makes the image), or
// beside a program that copies its directory by other means. A file beside the others counts its writes, so
// a process that starts on a copy of the directory continues from there, and can check whether the copy is
// complete. The program knows nothing of containers, migrations or how its files are copied.
package tree
