package migrate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// The kinds of alarms, beside location.AlarmDouble.
const (
	alarmDoubt  = "doubt"  // the target of its migration can never say whether it runs there
	alarmThawed = "thawed" // its frozen copy here has run, and the target of its migration may run it, too
	alarmLeft   = "left"   // it was left frozen by a migration whose journal is lost
)

// Alarmed is work that has an alarm of its own.
type Alarmed interface {
	// Alarm is what is wrong with the frozen copy here; empty: nothing.
	Alarm() string
}

// Alarms lists what an operator should look at, with other alarms, sorted by the names of the containers.
func (m *Moves) Alarms(others []*api.Alarm) []*api.Alarm {
	all := others
	for _, move := range m.List() {
		if alarm := move.alarmed(); alarm != nil {
			all = append(all, alarm)
		}
	}
	slices.SortStableFunc(all, func(a, b *api.Alarm) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// alarmed returns the alarm of a migration, or nil if it has none.
func (m *Move) alarmed() *api.Alarm {
	record, spec, ran := m.Record(), m.Tracker.Spec, ""
	if work, is := m.Work().(Alarmed); is && !m.Ended() {
		ran = work.Alarm()
	}
	alarm := &api.Alarm{Container: spec.Container, Name: spec.Name, SinceUnixNanoseconds: m.since.UnixNano()}
	switch {
	case ran != "" && !record.Rebuilt: // else it may not have been frozen
		alarm.Kind, alarm.Text = alarmThawed, ran
	case record.State != migration.InDoubt:
		return nil
	case record.Alarm != "":
		alarm.Kind, alarm.Text = alarmDoubt, record.Alarm
	case record.Rebuilt:
		alarm.Kind, alarm.Text = alarmLeft,
			fmt.Sprintf(
				`frozen here: the journal of its migration to %s is lost, and %s has not said yet `+
					`whether it runs there; if it can never say: "godwit thaw %s --force"`,
				spec.Target, spec.Target, spec.Name)
	default:
		return nil
	}
	return alarm
}
