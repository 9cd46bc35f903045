package migration

import "slices"

// Rebuilt returns the record of a source that has lost its journal, made from its engine's note of the
// departing container. How far the migration had come is not known: the final marker may have left, so the
// source is in doubt, and each earlier step may have begun. Undos tolerate steps that had not begun.
func Rebuilt(spec Spec, why string) (Record, error) {
	if err := spec.check(); err != nil {
		return Record{}, err
	}
	rec := Record{
		Version: recordVersion, ReadableFrom: readableFrom, Spec: spec, State: InDoubt, Begun: []StepName{},
		Final: true, Rebuilt: true,
		Result: ResultRuns, Error: bounded(why, maxText),
	}
	steps := sideSteps(spec)
	final := slices.IndexFunc(steps, func(s Step) bool { return s.Final })
	for _, s := range steps[:final+1] {
		if s.At == Source || s.Undo != "" {
			rec.Begun = append(rec.Begun, s.Name)
		}
	}
	return rec, rec.check(steps)
}
