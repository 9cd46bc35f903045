package controller

import (
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
)

// Describe describes the copies of all policies, and then the other stages of this node among staged.
func (c *Controller) Describe(staged []migration.Stage) (list []migration.Stage) {
	live := map[layersAt]migration.Stage{}
	var others []migration.Stage
	for _, one := range staged {
		if one.Kind == migration.StagedCopy && one.State != migration.StageEnded &&
			c.of(one.ContainerID) != nil {
			live[layersAt{one.ContainerID, one.Target}] = one
			continue
		}
		others = append(others, one)
	}
	for _, f := range c.list() {
		p, d := f.outlook()
		list = append(list, c.describe(p, d, live)...)
	}
	return append(list, others...)
}

// describe describes what a policy wants, and what there is of it. Copies that are live are in live.
func (c *Controller) describe(p placement.Policy, d placement.Decision,
	live map[layersAt]migration.Stage) (list []migration.Stage) {
	name := p.Container
	if container, err := c.config.Containers.Inspect(c.ctx, referenceOf(p)); err == nil {
		name = container.Definition.Name
	}
	described := map[string]bool{}
	add := func(node string, of *migration.Placement) {
		if described[node] {
			return
		}
		described[node] = true
		one, is := live[layersAt{p.Container, node}]
		if !is {
			one = c.describeCopy(p, node, name)
		}
		if there := p.At(node); there != nil {
			one.SentBytes = max(one.SentBytes, there.SentBytes)
			of.Failures = there.Failures
			if one.Error == "" {
				one.Error = there.Error
			}
		}
		one.Placement, one.Until = of, p.Until
		list = append(list, one)
	}
	for _, t := range d.Targets {
		add(t.Node, describeTarget(p, t))
	}
	for _, stop := range p.Path { // if nothing was decided yet
		add(stop.Node, &migration.Placement{Why: migration.PlacementPath, Deadline: stop.Deadline})
	}
	for _, there := range p.Copies {
		add(there.Node, &migration.Placement{Why: migration.PlacementSpare})
	}
	return list
}

func describeTarget(p placement.Policy, t placement.Target) *migration.Placement {
	told := &migration.Placement{
		Why: migration.PlacementPath, Deadline: t.Deadline, Begin: t.Begin, From: t.From,
		Outlook: string(t.Outlook), LateSeconds: t.Late.Seconds(),
		NeedSeconds: t.Need.Seconds, NeedWorstSeconds: t.Need.High, NeedBytes: t.Need.Bytes,
	}
	if p.Nearest > 0 {
		told.Why = migration.PlacementNearest
	}
	return told
}

// describeCopy describes one that is not live.
func (c *Controller) describeCopy(p placement.Policy, node, name string) migration.Stage {
	told := migration.Stage{
		Kind: migration.StagedCopy, Container: name, ContainerID: p.Container, Source: c.config.Node,
		Target: node, State: migration.StageWaiting,
	}
	if there := p.At(node); there != nil && there.Bytes > 0 {
		told.State, told.Fresh, told.MemoryBytes, told.RoundSeconds = migration.StageIdle, there.Fresh,
			there.Bytes, there.Seconds
	}
	return told
}
