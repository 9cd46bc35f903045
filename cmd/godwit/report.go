package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/units"
)

// progressLine formats the progress of a migration as one line.
func progressLine(p migration.Progress) string {
	parts := []string{fmt.Sprintf("%6.1f s  %-9s", p.Seconds, p.Phase)}
	pushing := p.Phase == string(migration.StepPush)
	if p.Rounds > 0 && !pushing {
		parts = append(parts, fmt.Sprintf("round %d", p.Rounds+1))
	}
	if p.Phase == string(migration.StepRounds) && p.Rounds == 0 && p.FileRounds > 0 {
		parts = append(parts, fmt.Sprintf("files, round %d", p.FileRounds+1))
	}
	sending := p.Phase == string(migration.StepStage) || p.Phase == string(migration.StepRounds) ||
		p.Phase == string(migration.StepDump) || p.Phase == string(migration.StepSend)
	if p.DoneBytes > 0 && !pushing {
		// Before compression, so not what the link carried.
		parts = append(parts, fmt.Sprintf("%s done", units.FormatBytes(p.DoneBytes)))
		if sending && p.TotalBytes > p.DoneBytes {
			parts = append(parts, fmt.Sprintf("of at most %s", units.FormatBytes(p.TotalBytes)))
		}
	}
	if sending && p.Rate > 0 {
		parts = append(parts, fmt.Sprintf("%s/s", units.FormatBytes(int64(p.Rate))))
	}
	if sending && p.LeftTime > 0 {
		parts = append(parts, fmt.Sprintf("%s left",
			max(time.Second, time.Duration(p.LeftTime*float64(time.Second)).Round(time.Second))))
	}
	if p.Phase == string(migration.StepRounds) && p.Rounds == 0 && p.ExpectedFilesSeconds > 0 {
		parts = append(parts, fmt.Sprintf("then about %s for files that changed",
			units.FormatSeconds(p.ExpectedFilesSeconds)))
	}
	if p.Phase == string(migration.StepRounds) && p.Rounds > 0 {
		if p.DirtyingRate > 0 { // unknown until the second round has measured it
			parts = append(parts, fmt.Sprintf("writes %s/s", units.FormatBytes(int64(p.DirtyingRate))))
		}
		parts = append(parts, fmt.Sprintf("freeze now: %s", units.FormatSeconds(p.ExpectedDowntimeSeconds)))
	}
	if pushing && p.Push != nil {
		parts = append(parts, pushProgress(*p.Push))
	}
	if p.Waiting != "" {
		parts = append(parts, "waiting for "+units.FormatSeconds(p.WaitingSeconds))
	}
	if p.State == migration.InDoubt {
		parts = append(parts, "in doubt: asking the target")
	}
	return strings.TrimRight(strings.Join(parts, "  "), " ")
}

// pushProgress formats the progress of post-copy memory.
func pushProgress(d migration.Push) string {
	text := fmt.Sprintf("%d of %d pages left", d.LeftPages, d.RemotePages)
	if d.Faults > 0 {
		text += fmt.Sprintf("  %d faults, half within %s, 99 %% within %s", d.Faults,
			units.FormatSeconds(d.FaultMedianSeconds), units.FormatSeconds(d.FaultP99Seconds))
	}
	if why, known := spillWords[d.Spill]; known {
		text += "  " + why
	}
	if d.Connections > 1 {
		text += fmt.Sprintf("  connected %d times", d.Connections)
	}
	return text
}

// spillWords describe the effect of a reboot of the source.
var spillWords = map[migration.SpillState]string{
	migration.SpillWriting:  "being written to the source's disk",
	migration.SpillComplete: "on the source's disk, too",
	migration.SpillServing:  "from the source's disk",
	migration.SpillFailed:   "not on the source's disk",
}

// printPush prints the outcome of the post-copy push.
func printPush(w io.Writer, d *migration.Push, bytes migration.Bytes) {
	if d == nil {
		return
	}
	fmt.Fprintf(w, "  followed        %d of %d pages", d.RemotePages-d.LeftPages-d.LostPages, d.RemotePages)
	if d.Seconds > 0 {
		fmt.Fprintf(w, " in %s", units.FormatSeconds(d.Seconds))
	}
	if d.UrgentPages+d.PushedPages > 0 { // an agent knows only the pages that it sent itself
		fmt.Fprintf(w, ": %d wanted (%s), %d pushed (%s)", d.UrgentPages,
			units.FormatBytes(bytes.MemoryFaulted), d.PushedPages, units.FormatBytes(bytes.MemoryPushed))
	}
	fmt.Fprintln(w)
	if d.Faults > 0 {
		fmt.Fprintf(w, "  faults          %d; half took %s, 99 %% %s, the longest %s; threads waited %s "+
			"in all\n", d.Faults,
			units.FormatSeconds(d.FaultMedianSeconds), units.FormatSeconds(d.FaultP99Seconds),
			units.FormatSeconds(d.FaultMaximumSeconds), units.FormatSeconds(d.WaitedSeconds))
	}
	if why, known := spillWords[d.Spill]; known {
		fmt.Fprintf(w, "  spill           %s\n", why)
	}
	if d.LostPages > 0 {
		fmt.Fprintf(w, "  lost            %d pages: each access to one fails\n", d.LostPages)
	}
}

// still returns the state of a container that was not running.
func still(r migration.Report) string {
	if r.Mode == migration.Restart {
		return "stopped"
	}
	return "frozen"
}

// printSwitchover prints what is known of the switchover: an agent that started later knows little about
// it.
func printSwitchover(w io.Writer, r migration.Report) {
	if r.DowntimeSeconds > 0 {
		fmt.Fprintf(w, "  %-14s  %s\n", still(r)+" for", units.FormatSeconds(r.DowntimeSeconds))
	} else {
		fmt.Fprintf(w, "  %-14s  (not known here)\n", still(r)+" for")
	}
	if r.HandoffSeconds > 0 {
		fmt.Fprintf(w, "  handed over in  %s\n", units.FormatSeconds(r.HandoffSeconds))
	}
	fmt.Fprintf(w, "  whole           %s\n", units.FormatSeconds(r.TotalSeconds))
	printSent(w, r)
	printKept(w, r)
	if r.Link.BandwidthBitsPerSecond > 0 {
		fmt.Fprintf(w, "  link            %s, %s\n", units.FormatBits(r.Link.BandwidthBitsPerSecond),
			units.FormatSeconds(r.Link.RTTSeconds))
	}
}

// printSent prints how much was sent, and what.
func printSent(w io.Writer, r migration.Report) {
	files, layers := units.FormatBytes(r.Bytes.FilesPrecopy+r.Bytes.FilesFinal),
		units.FormatBytes(r.Bytes.Layers)
	if r.Mode == migration.Restart {
		fmt.Fprintf(w, "  sent            %s files, %s layers\n", files, layers)
	} else if r.Bytes.MemoryRaw > 0 {
		remote := int64(0)
		if r.Push != nil {
			remote = r.Push.RemotePages * int64(os.Getpagesize()) // both nodes have pages of the same size
		}
		fmt.Fprintf(w, "  sent            %s memory and state (%s before compression), %s files, %s layers\n",
			units.FormatBytes(r.Bytes.MemoryPrecopy+r.Bytes.MemoryFinal+r.Bytes.MemoryFaulted+
				r.Bytes.MemoryPushed),
			units.FormatBytes(r.Bytes.MemoryRaw+remote), files, layers)
	}
}

// printKept prints what was not sent because an earlier attempt had brought it.
func printKept(w io.Writer, r migration.Report) {
	if r.Bytes.FilesKept > 0 {
		fmt.Fprintf(w, "  kept            %s of files, from an earlier attempt\n",
			units.FormatBytes(r.Bytes.FilesKept))
	}
}

// printReport prints the result of a migration.
func printReport(w io.Writer, r migration.Report) {
	fmt.Fprintf(w, "%s: %s -> %s, %s: %s\n", r.Container, r.Source, r.Target, r.Mode, r.Result)
	printChoice(w, r)
	printProblems(w, r.Problems)
	for _, note := range r.Notes {
		fmt.Fprintf(w, "  note: %s\n", plainText(note))
	}
	if r.Result != migration.Moved {
		if r.Mode == migration.Restart && r.Result == migration.RolledBack && r.DowntimeSeconds > 0 {
			fmt.Fprintf(w, "  stopped for     %s, until it ran again at %s\n",
				units.FormatSeconds(r.DowntimeSeconds), r.Source)
		}
		printPush(w, r.Push, r.Bytes)
		printKept(w, r)
		printFileRounds(w, r)
		printRounds(w, r.Rounds)
		printThrottles(w, r.Throttles)
		return
	}
	printSwitchover(w, r)
	if r.Held.Packets > 0 {
		fmt.Fprintf(w, "  packets held    %d, forwarded in order, %d lost; the longest waited %s\n",
			r.Held.Packets, r.Held.Dropped, units.FormatSeconds(r.Held.LongestSeconds))
	}
	printPush(w, r.Push, r.Bytes)
	printVolumes(w, r.Volumes)
	printFileRounds(w, r)
	printRounds(w, r.Rounds)
	printThrottles(w, r.Throttles)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\tphase\tnode\tbegan at\ttook\t\n")
	for _, phase := range r.Phases {
		frozen := ""
		if phase.Downtime {
			frozen = "  " + still(r)
		}
		fmt.Fprintf(table, "\t%s\t%s\t%s\t%s\t%s\n", phase.Name, phase.Node,
			units.FormatSeconds(phase.StartSeconds), units.FormatSeconds(phase.Seconds), frozen)
	}
	_ = table.Flush() // as with Fprintf, nobody reads this error
}

// printChoice prints the mode and its reason, if the user left the choice to Godwit.
func printChoice(w io.Writer, r migration.Report) {
	for _, decision := range r.Decisions {
		if why, is := strings.CutPrefix(decision, "auto: "); is {
			fmt.Fprintf(w, "  auto            %s\n", plainText(why))
		}
	}
}

// printFileRounds lists the rounds of files that copied data ahead of the freeze.
func printFileRounds(w io.Writer, r migration.Report) {
	if !slices.ContainsFunc(r.FileRounds,
		func(f migration.FileRound) bool { return !f.Final && f.SentBytes > 0 }) {
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\tfiles\tthere are\tchanged\tsent\ttook\t\n")
	for i, f := range r.FileRounds {
		after := ""
		if f.Final {
			after = "  " + still(r)
		}
		fmt.Fprintf(table, "\t%d\t%d\t%d\t%s\t%s\t%s\n", i+1, f.Entries, f.ChangedEntries,
			units.FormatBytes(f.SentBytes), units.FormatSeconds(f.Seconds), after)
	}
	_ = table.Flush() // as with Fprintf, nobody reads this error
}

// printRounds lists the rounds of a pre-copy.
func printRounds(w io.Writer, rounds []migration.Round) {
	if !slices.ContainsFunc(rounds, func(r migration.Round) bool { return r.Pages > 0 }) {
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\tround\tpages\tsent\ttook\tfreeze then\t\n")
	for i, r := range rounds {
		after := "frozen"
		if !r.Final {
			after = units.FormatSeconds(r.ExpectedDowntimeSeconds)
		}
		fmt.Fprintf(table, "\t%d\t%d\t%s\t%s\t%s\t\n", i+1, r.Pages, units.FormatBytes(r.SentBytes),
			units.FormatSeconds(r.Seconds), after)
	}
	_ = table.Flush() // as with Fprintf, nobody reads this error
}

// printThrottles prints how much processor time was taken from a container, and for how long.
func printThrottles(w io.Writer, throttles []migration.ThrottleStep) {
	for _, t := range throttles {
		fmt.Fprintf(w, "  throttled       to %.2f processors after round %d, for %s\n", t.CPUs, t.AfterRounds,
			units.FormatSeconds(t.Seconds))
	}
}

// printReason prints why a migration did not move its container, unless an error that follows says so.
func printReason(w io.Writer, r migration.Report) {
	if r.Error != nil && len(r.Problems) == 0 {
		fmt.Fprintf(w, "  why: %s\n", errorOf(r))
	}
	if r.Alarm != "" {
		fmt.Fprintf(w, "  ALARM: %s\n", r.Alarm)
	} else if r.Result == migration.ResultDoubt {
		fmt.Fprintf(w, "  %s asks %s until it answers; if %s is gone for good, see \"godwit migration "+
			"resolve --help\"\n", r.Source, r.Target, r.Target)
	}
}

// printProblems lists refusals.
func printProblems(w io.Writer, problems []migration.Problem) {
	for _, p := range problems {
		fmt.Fprintf(w, "  %s\n    why: %s\n", p.What, p.Why)
		if p.Remedy != "" {
			fmt.Fprintf(w, "    do:  %s\n", p.Remedy)
		}
	}
}

// printSpill prints how much disk space the pages that stay at the source need there.
func printSpill(w io.Writer, label string, p migration.Plan) {
	if p.SpillBytes > 0 {
		fmt.Fprintf(w, "%s%s at most, encrypted, on the disk of %s if memory follows\n",
			label, units.FormatBytes(p.SpillBytes), p.Source)
	}
}

// printPlan prints whether a migration would work.
func printPlan(w io.Writer, p migration.Plan) {
	verdict := "would work"
	if !p.Possible {
		verdict = "would be refused"
	}
	fmt.Fprintf(w, "%s: %s -> %s, %s: %s\n", p.Container, p.Source, p.Target, p.Mode, verdict)
	printProblems(w, p.Problems)
	for _, warning := range p.Warnings {
		fmt.Fprintf(w, "  note: %s\n", warning)
	}
	if p.Mode != migration.Restart {
		fmt.Fprintf(w, "  memory          %s at most, before compression\n", units.FormatBytes(p.MemoryBytes))
	}
	printSpill(w, "  spill           ", p)
	fmt.Fprintf(w, "  files           %s\n", units.FormatBytes(p.FilesBytes))
	printVolumes(w, p.Volumes)
	fmt.Fprintf(w, "  layers          %d that %s lacks\n", len(p.MissingLayers), p.Target)
}
