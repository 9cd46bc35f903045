// Package statedir reserves a state directory for one agent, and distinguishes one state from another.
//
// The commit rule of a migration rests on two facts that a journal cannot prove: that no other process
// writes the journal, and that the journal is the last one that was written. Open locks the state directory
// and the run directory before it reads anything from them. It also returns the state's incarnation, which
// changes when the state is made anew, is found on another machine, or is replaced by an older copy while
// the machine is up.
//
// The incarnation does not change when a machine is cloned or rolled back as a whole, with its
// machine id, its run directory and its state, nor when a state is rolled back to a copy made since
// the last start of the agent. In these cases only the engine knows which containers run there, so
// code that answers from the state must ask the engine, too.
package statedir
