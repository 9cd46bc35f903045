// Package frozen owns the copy of a container that its source keeps after the freeze, until the copy is
// thawed or destroyed.
//
// From the final marker on the target may run the container, while the copy here is frozen and may have to go
// on, or has pages that are to follow. Whoever thaws that copy must not have a second one run, and whoever
// kills it must not take its memory with it. So a keeper (inject.Seizure) holds its processes until they are
// thawed or destroyed, which releases them, and OOM killers take them last. A keeper is a process of its own,
// so an agent that is started again finds it at work. Without one all goes on as well, but does not survive
// that.
//
// The package owns the invariant that no target gets the final marker of a copy that has run since it was
// frozen: Hold and AwaitHeld freeze and check the copy, and ReleaseFinal gives the marker up only if nothing
// has denied it. What a migration does next is decided elsewhere; how an engine freezes, too
// (engine.Protector).
package frozen
