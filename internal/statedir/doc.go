// Package statedir keeps a state directory to one agent, and tells one state from another.
//
// It exists for two facts on which the commit rule of a migration rests and which a journal cannot tell: that nobody else writes the
// journal, and that the journal is the one that was written. Open takes a lock on the state directory and on the run directory before
// anything is read from them. It also gives the state's incarnation, which changes when the state is made anew, is found on another
// machine, or was put back behind a running machine's back.
//
// What an incarnation cannot tell: a machine that was cloned or rolled back as a whole, with its machine id, its run directory and
// its state; and a state that was rolled back to a copy made since the agent started last. Of the containers that run there only
// the engine knows then, and whoever answers for the state has to ask it, too.
package statedir
