// Package staging makes copies of containers at other nodes ahead of a migration: Stages at the node where a
// container runs, Copies at the node where the copy is, and one connection between them.
//
// A stage is no migration: it has no journal and no commit. If anything goes wrong, the copy is gone, or
// becomes an idle copy, and the container has noticed nothing. A migration takes a copy over (Stage.Take, and
// Target.Migration at the other end), or ends it: a container's memory has one tracker.
//
// The package knows neither what a migration does with a copy nor where copies should be: see package
// placement. What it needs of the node are the interfaces of Config and CopiesConfig.
package staging
