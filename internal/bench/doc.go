// Package bench measures Godwit side by side with other ways to do the same, in a lab on this machine.
//
// A suite makes its lab, runs every way in turn, several times, and takes the lab down again, whatever happens. Its
// result is one flat list of rows, so that a person or a program can compare anything with anything, and a list of what
// is asked of Godwit and whether that is met.
//
// The package starts programs and reads what they print: it must not import the agent or an engine's implementation,
// so that Godwit is measured as its users have it.
package bench
