package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/units"
)

// placementFlags are the flags of stage for the nodes where a container will be, or may be.
type placementFlags struct {
	path    string
	nearest int32
	budget  *cli.Parsed[int64]
	off     bool
}

func addPlacementFlags(cmd *cobra.Command) *placementFlags {
	f := &placementFlags{budget: cli.SizeFlag()}
	flags := cmd.Flags()
	flags.StringVar(&f.path, "path", "",
		"where the container will be, and by when: NODE@TIME,..., such as b@10m,c@14:30")
	flags.Int32Var(&f.nearest, "nearest", 0,
		"keep copies at this many of the container's nearest neighbours, wherever it is")
	flags.Var(f.budget, "budget",
		"with --nearest: memory that all copies together may use, such as 2GiB (default: no limit)")
	flags.BoolVar(&f.off, "off", false, "stop --path or --nearest, and remove their copies")
	return f
}

// exclude marks flags that exclude each other. It is called when the command has all its flags.
func (f *placementFlags) exclude(cmd *cobra.Command) {
	for _, other := range []string{"nearest", "budget", "layers-only", "keep-fresh", "off", "detach"} {
		cmd.MarkFlagsMutuallyExclusive("path", other)
	}
	for _, other := range []string{"layers-only", "keep-fresh", "off", "detach"} {
		cmd.MarkFlagsMutuallyExclusive("nearest", other)
	}
}

// wanted reports whether any of these flags was given.
func (f *placementFlags) wanted() bool {
	return f.path != "" || f.nearest != 0 || f.budget.WasSet || f.off
}

// stageArgs requires a container, and a node unless flags give the nodes.
func (f *placementFlags) stageArgs(cmd *cobra.Command, args []string) error {
	count := 2
	if f.wanted() {
		count = 1
	}
	return cli.Arguments(cobra.ExactArgs(count))(cmd, args)
}

func (f *placementFlags) request(container string, now time.Time) (*api.StageAheadRequest, error) {
	request := &api.StageAheadRequest{Container: container, Nearest: f.nearest, BudgetBytes: f.budget.Value,
		Off: f.off}
	if f.budget.WasSet && f.nearest == 0 {
		return nil, cli.Usage(errors.New("--budget needs --nearest: say at how many neighbours to keep " +
			"copies"))
	}
	if f.path == "" {
		return request, nil
	}
	for _, text := range strings.Split(f.path, ",") {
		stop, err := parseStop(text, now)
		if err != nil {
			return nil, cli.Usage(err)
		}
		request.Path = append(request.Path, stop)
	}
	return request, nil
}

// parseStop reads NODE@TIME: a duration from now, a time of day, or a date and time (RFC 3339).
func parseStop(text string, now time.Time) (*api.Stop, error) {
	node, when, found := strings.Cut(strings.TrimSpace(text), "@")
	if !found || node == "" {
		return nil, fmt.Errorf("%q is not a stop of a path: want NODE@TIME, for example b@90s or b@14:30",
			text)
	}
	deadline, err := parseDeadline(when, now)
	if err != nil {
		return nil, err
	}
	return &api.Stop{Node: node, DeadlineUnixNanoseconds: deadline.UnixNano()}, nil
}

func parseDeadline(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(d), nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			at = time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(),
				0, now.Location())
			if !at.After(now) { // the next time that a clock shows this time of day
				at = at.AddDate(0, 0, 1)
			}
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a deadline: want a duration such as 90s, "+
		"a time of day such as 14:30, or a date and time", text)
}

// place tells the agent where a container will be, or may be, and prints the expected placement.
func place(cmd *cobra.Command, agent api.AgentClient, request *api.StageAheadRequest, asJSON bool) error {
	reply, err := agent.StageAhead(cmd.Context(), request)
	if err != nil {
		return err
	}
	list := make([]migration.Stage, len(reply.StagesJson))
	for i, document := range reply.StagesJson {
		if err := json.Unmarshal(document, &list[i]); err != nil {
			return fmt.Errorf("answer of the agent: %w", err)
		}
	}
	switch {
	case asJSON:
		return cli.PrintJSON(cmd.OutOrStdout(), list)
	case request.Off:
		fmt.Fprintf(cmd.OutOrStdout(), "%s: godwit places no more copies\n", request.Container)
		return nil
	}
	return printPlacement(cmd.OutOrStdout(), list, time.Now())
}

// printPlacement prints where copies will be, and whether in time.
func printPlacement(w io.Writer, list []migration.Stage, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tDEADLINE\tBEGINS\tTAKES\tSENDS\tOUTLOOK")
	for _, s := range list {
		a := s.Placement
		if a == nil {
			continue
		}
		deadline, outlook := "-", "-"
		if !a.Deadline.IsZero() {
			deadline, outlook = formatMoment(a.Deadline, now), outlookText(a)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s (at worst %s)\t%s\t%s\n", s.Target, deadline, beginText(a, now),
			units.FormatSeconds(a.NeedSeconds),
			units.FormatSeconds(a.NeedWorstSeconds), units.FormatBytes(int64(a.NeedBytes)), outlook)
	}
	return table.Flush()
}

// formatMoment formats a future time, with the date if it is more than a day away.
func formatMoment(at, now time.Time) string {
	if at.Sub(now) < 24*time.Hour {
		return at.Local().Format(time.TimeOnly)
	}
	return at.Local().Format(time.DateTime)
}

func beginText(a *migration.Placement, now time.Time) string {
	switch {
	case a.From != "":
		return formatMoment(a.Begin, now) + ", from " + a.From
	case a.Begin.After(now):
		return formatMoment(a.Begin, now)
	}
	return "now"
}

func outlookText(a *migration.Placement) string {
	if a.LateSeconds > 0 {
		return fmt.Sprintf("%s by %s", a.Outlook, units.FormatSeconds(a.LateSeconds))
	}
	return a.Outlook
}

// placementText explains in a list why a copy is made, and whether in time.
func placementText(a *migration.Placement, now time.Time) string {
	switch {
	case a == nil:
		return "-"
	case a.Deadline.IsZero():
		return a.Why
	}
	text := a.Why + ", by " + formatMoment(a.Deadline, now)
	if outlook := outlookText(a); outlook != "" {
		text += ": " + outlook
	}
	return text
}
