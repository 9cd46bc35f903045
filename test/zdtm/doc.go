// Package zdtm runs CRIU's own test suite: each of its programs sets up one kind of state, is moved, and
// then checks whether the state is unchanged. Each runs in a container of Godwit that moves between two
// nodes of a lab in every mode, and also in the same container under plain runc, which is checkpointed and
// restored in place. A program that passes there must pass here, or be refused by name before anything
// moves.
//
// The suite is fetched and built by scripts/fetch-zdtm.sh (`make zdtm`); it is no part of this repository.
package zdtm
