// Package pages is a program whose memory changes all the time and that knows what each page of it must hold.
//
// It runs as a process of its own: in a container that is moved (image.OfProgram makes the image),
// or beside what reads its memory. It is part of this program, so that whoever measures or tests
// needs no compiler. It knows nothing of containers, migrations or how its memory is carried.
package pages
