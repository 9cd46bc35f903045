package admission

import (
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
)

// examineRoom compares what comes with the memory and the disk that are free.
func (a *Admission) examineRoom(from string, definition engine.Definition, offer *api.Offer) (
	[]migration.Problem, error) {
	coming, err := comingOf(definition, offer)
	if err != nil {
		return nil, err
	}
	var problems []migration.Problem
	staged, reserved := a.memory.Staged(definition.ID)
	own := slices.Concat(reserved, []string{offer.Migration})
	needed := envelopes.MemoryCopies(offer)*offer.MemoryBytes + coming.memory - staged
	promised := a.memory.Reservations.Promised(own...)
	free, err := a.memory.Available()
	if short := needed - (free - promised); err == nil && short > 0 && short <= a.memory.Residuals.Bytes() {
		if !offer.DryRun {
			a.memory.Residuals.Yield(short)
		}
		free = needed + promised
	}
	if err == nil {
		problems = memoryProblems(a.node, needed, free, promised, whyMemory(offer, coming))
	}
	problems = append(problems, a.examineShare(from, offer.Migration, needed, reserved)...)
	image, err := a.imageNeed(definition, offer)
	if err != nil {
		return nil, err
	}
	coming.rest += image
	disks, err := a.examineDisks(definition, coming, offer.DryRun)
	return slices.Concat(problems, disks, a.examineTmpfs(definition, coming)), err
}

// memoryProblems compares the memory that a container needs with what is free of it, of which a part is
// promised to others.
func memoryProblems(node string, needed, free, promised int64, why string) []migration.Problem {
	if free-promised >= needed {
		return nil
	}
	return []migration.Problem{{
		What: "memory of " + node, Why: fmt.Sprintf(
			"%d MiB are needed, %s; %d MiB are available, of which other migrations need %d",
			needed>>20, why, free>>20, promised>>20),
		Remedy: "free memory there, or choose another node",
	}}
}

// examineShare keeps one node from reserving all memory, so that containers of others can come, too. A single
// container may take all that is free, unless the policy has a limit: it could not come otherwise.
func (a *Admission) examineShare(from, id string, needed int64, own []string) []migration.Problem {
	reserved, free := a.memory.Reservations.PromisedTo(from, id, own...)
	limit, which := max(free, a.Free())/4*3, "three quarters of the free memory"
	if set := a.rules.Policy.MaxMemoryPerNodeBytes; set > 0 {
		limit, which = set, "max_memory_per_node_bytes in its policy"
	} else if reserved == 0 {
		return nil
	}
	return shareProblems(a.node, from, needed, reserved, limit, which)
}

// shareProblems compares what containers of one node need at the same time with the limit for them.
func shareProblems(node, from string, needed, reserved, limit int64, which string) []migration.Problem {
	if reserved+needed <= limit {
		return nil
	}
	return []migration.Problem{{
		What: "memory of " + node,
		Why: fmt.Sprintf("containers from %s may reserve %d MiB at the same time (%s); %d MiB are reserved, "+
			"and this container needs %d MiB", from, limit>>20, which, reserved>>20, needed>>20),
		Remedy: "wait until the others have arrived, or ask the administrator of " + node +
			" to change max_memory_per_node_bytes in its policy file",
	}}
}

// Free is the memory that containers can have: residual copies yield to them.
func (a *Admission) Free() int64 {
	free, err := a.memory.Available()
	if err != nil {
		return 0 // examineRoom tells
	}
	return free + a.memory.Residuals.Bytes()
}

// imageNeed is what the image takes on the disk when it is brought. An engine that keeps images
// itself gets it from the spool.
func (a *Admission) imageNeed(definition engine.Definition, offer *api.Offer) (int64, error) {
	images, err := a.engines.ImagesOf(definition.EngineName)
	if err != nil || images == nil {
		return layers.Need(a.layers.Missing(offer.Layers)), err
	}
	const copies = 3 // in the spool, and as the engine gets and unpacks it
	var bytes int64
	for _, layer := range offer.Layers {
		if !a.layers.OnNode(layer.DiffId) {
			bytes += copies * layer.ArchiveBytes
		}
	}
	return bytes, nil
}

func whyMemory(offer *api.Offer, coming comingFiles) string {
	why := "twice the container's memory, while its processes are restored"
	if envelopes.MemoryCopies(offer) == 1 {
		why = "the container's memory"
	}
	if coming.memory > 0 {
		why += fmt.Sprintf(", and %d MiB in its tmpfs volumes", coming.memory>>20)
	}
	return why
}

// ExamineOwnRoom looks whether there is room for the execution state beside the container that it
// is made from.
func (a *Admission) ExamineOwnRoom(offer *api.Offer) []engine.Problem {
	free, err := a.memory.Available()
	if err != nil || free >= offer.MemoryBytes {
		return nil
	}
	return []engine.Problem{{
		What: "memory of " + a.node,
		Why: fmt.Sprintf("the container's state takes up to %d MiB while it leaves, %d MiB are available",
			offer.MemoryBytes>>20, free>>20),
		Remedy: "free memory on this node",
	}}
}
