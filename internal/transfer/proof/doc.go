// Package proof finds out which volumes two nodes share: a Prover writes a token into each volume
// and asks the other node for it, which answers in the volume.
//
// Tokens are removed when the answers are judged; a note names them until then, so that the next
// agent removes what this one could not. Nothing here decides what becomes of a volume.
package proof
