// Package pages is a program whose memory changes all the time and that knows the expected content of each
// page.
//
// It runs as a separate process: in a container that is moved (image.OfProgram makes the image), or beside
// a program that reads its memory. It is part of this program, so that benchmarks and tests need no
// compiler. It knows nothing of containers, migrations or how its memory is moved.
package pages
