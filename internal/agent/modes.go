package agent

import "github.com/godwit/godwit/internal/migration"

// steps of the source in a mode.
func (s *source) steps(mode migration.Mode) steps {
	if mode == migration.Restart {
		stop := stopping{s}
		return append(steps{
			{name: migration.StepExamine, do: untimed(stop.examineAnew)},
			{name: migration.StepStage, do: with(s.stage, func() {})},
			{migration.StepRounds, with(s.besideLayers, stop.checkpoints), migration.UndoRounds,
				s.memory.Untrack},
			{migration.StepPrepare, with(s.prepare, stop.prepareStop), migration.UndoPrepare, s.unprepare},
			{migration.StepHold, untimed(stop.holdNew), migration.UndoHold, s.packets.ReleaseHere},
			{migration.StepStop, untimed(s.anew.Stop), migration.UndoStop, s.anew.Revive},
			{name: migration.StepSend, do: with(s.transfer, stop.sendFiles)},
		}, s.lastSteps()...)
	}
	return append(steps{
		{name: migration.StepExamine, do: untimed(s.examine)},
		{name: migration.StepStage, do: with(s.stage, s.frozen.StartKeeper)},
		{migration.StepRounds, with(s.besideLayers, s.rounds), migration.UndoRounds, s.memory.Untrack},
		{migration.StepPrepare, with(s.prepare, s.prepareDump), migration.UndoPrepare, s.unprepare},
		{migration.StepHold, untimed(s.dump.Hold), migration.UndoHold, s.packets.ReleaseHere},
		{migration.StepFreeze, untimed(s.dump.Freeze), migration.UndoFreeze, s.resume},
		{name: migration.StepDump, do: untimed(s.writeState)},
		{name: migration.StepSend, do: with(s.transfer, s.sendState)},
		{name: migration.StepPush, do: untimed(s.memory.Push)},
	}, s.lastSteps()...)
}

// lastSteps are those of the source when the container runs at the target, in every mode.
func (s *source) lastSteps() steps {
	return steps{
		{name: migration.StepForward, do: untimed(s.packets.ReleaseThere)},
		{name: migration.StepDestroy, do: untimed(s.destroy)},
		{name: migration.StepCleanup, do: untimed(s.cleanup)},
	}
}

// steps of the target in a mode.
func (t *target) steps(mode migration.Mode) steps {
	both := steps{
		{migration.StepReserve, untimed(t.reserve), migration.UndoReserve, t.release},
		{name: migration.StepFinalise, do: untimed(t.finalise)},
	}
	if mode == migration.Restart {
		return append(both, steps{
			{migration.StepArrive, with(t.arrive, t.anew.Expect), migration.UndoArrive, t.discard},
			{name: migration.StepReceive, do: with(t.receive, t.receiveFiles)},
			{migration.StepStart, t.startAnew, migration.UndoRestore, t.fence},
		}...)
	}
	return append(both, steps{
		{migration.StepArrive, with(t.arrive, t.expectRestore), migration.UndoArrive, t.discard},
		{name: migration.StepReceive, do: with(t.receive, t.receiveState)},
		{migration.StepRestore, t.restore, migration.UndoRestore, t.fence},
	}...)
}
