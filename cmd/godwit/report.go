package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// progressLine tells in one line how far a migration is.
func progressLine(p migration.Progress) string {
	parts := []string{fmt.Sprintf("%6.1f s  %-9s", p.Seconds, p.Phase)}
	sending := p.Phase == string(migration.StepStage) || p.Phase == string(migration.StepDump) || p.Phase == string(migration.StepSend)
	if p.DoneBytes > 0 {
		parts = append(parts, fmt.Sprintf("%s sent", formatBytes(p.DoneBytes)))
		if sending && p.TotalBytes > p.DoneBytes {
			parts = append(parts, fmt.Sprintf("of at most %s", formatBytes(p.TotalBytes)))
		}
	}
	if sending && p.Rate > 0 {
		parts = append(parts, fmt.Sprintf("%s/s", formatBytes(int64(p.Rate))))
	}
	if sending && p.LeftTime > 0 {
		parts = append(parts, fmt.Sprintf("%s left", max(time.Second, time.Duration(p.LeftTime*float64(time.Second)).Round(time.Second))))
	}
	if p.State == migration.InDoubt {
		parts = append(parts, "in doubt: asking the target")
	}
	return strings.TrimRight(strings.Join(parts, "  "), " ")
}

// printReport tells a person how a migration went.
func printReport(w io.Writer, r migration.Report) {
	fmt.Fprintf(w, "%s: %s -> %s, %s: %s\n", r.Container, r.Source, r.Target, r.Mode, r.Result)
	printProblems(w, r.Problems)
	if r.Result != migration.Moved {
		return
	}
	fmt.Fprintf(w, "  frozen for      %s\n", formatSeconds(r.DowntimeSeconds))
	fmt.Fprintf(w, "  handed over in  %s\n", formatSeconds(r.HandoffSeconds))
	fmt.Fprintf(w, "  whole           %s\n", formatSeconds(r.TotalSeconds))
	fmt.Fprintf(w, "  sent            %s memory and state (%s before compression), %s files, %s layers\n",
		formatBytes(r.Bytes.MemoryFinal), formatBytes(r.Bytes.MemoryRaw), formatBytes(r.Bytes.FilesFinal), formatBytes(r.Bytes.Layers))
	fmt.Fprintf(w, "  link            %s, %s\n", formatBits(r.Link.BandwidthBitsPerSecond), formatSeconds(r.Link.RTTSeconds))
	if r.Held.Packets > 0 {
		fmt.Fprintf(w, "  packets held    %d, forwarded in order, %d lost\n", r.Held.Packets, r.Held.Dropped)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\tphase\tnode\tbegan at\ttook\t\n")
	for _, phase := range r.Phases {
		frozen := ""
		if phase.Downtime {
			frozen = "  frozen"
		}
		fmt.Fprintf(table, "\t%s\t%s\t%s\t%s\t%s\n", phase.Name, phase.Node, formatSeconds(phase.StartSeconds),
			formatSeconds(phase.Seconds), frozen)
	}
	_ = table.Flush() // As with Fprintf: nobody to tell.
}

// printReason tells why a migration did not move its container, where no error that follows says so.
func printReason(w io.Writer, r migration.Report) {
	if r.Error != nil && len(r.Problems) == 0 {
		fmt.Fprintf(w, "  why: %s\n", errorOf(r))
	}
	if r.Result == migration.ResultDoubt {
		fmt.Fprintf(w, "  %s asks %s until it answers; if %s is gone for good, see \"godwit migration resolve --help\"\n", r.Source, r.Target, r.Target)
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

// printPlan tells a person whether a migration would work.
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
	fmt.Fprintf(w, "  memory  %s at most, before compression\n", formatBytes(p.MemoryBytes))
	fmt.Fprintf(w, "  files   %s\n", formatBytes(p.FilesBytes))
	fmt.Fprintf(w, "  layers  %d that %s has not\n", len(p.MissingLayers), p.Target)
}
