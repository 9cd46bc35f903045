// Package rebuild makes lost journals anew. A source that has lost its journal has a frozen container that no
// migration is in charge of. The engine's note of the departure names the migration and its target. From that
// note the journal is rebuilt, in doubt, and the migration goes on as after a crash: it asks the target, and
// destroys or thaws the copy according to the answer.
//
// The package neither asks the target nor touches a container: Migrations go on from the journal.
package rebuild
