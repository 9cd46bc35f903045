// Package bench measures Godwit side by side with other ways to do the same, on this machine.
//
// The suite switchover moves containers in a lab: it runs every way in turn, several times, and
// takes the lab down again, whatever happens. The suite postcopy does the same with programs whose
// memory follows them, and asks these how long they waited. The suite studies does it with the
// services of four studies, each with a client that is a real user of it, and puts the studies' own
// figures beside what is measured; package page makes charts of it. The suite engines moves
// containers of Docker and Podman, by Godwit and in these engines' own ways. The suite rounds
// measures the parts of a pre-copy on processes that it starts. What is measured is data:
// scenarios, followings, trials and experiments. A result is one flat list of rows, so that a
// person or a program can compare anything with anything, and a list of what is asked of Godwit and
// whether that is met.
//
// A way that loses something is not measured: clients check every answer, and workloads every page
// of their memory.
//
// The package starts programs and reads what they print: it must not import the agent or an
// engine's implementation, so that Godwit is measured as its users have it. The suite rounds uses
// the packages memory and kernel as the agent does.
package bench
