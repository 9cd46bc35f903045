package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/migration"
)

func TestUsageErrors(t *testing.T) {
	for _, line := range []string{"frob", "migrat", "image frob", "migration frob", "help frob",
		"help image frob", "ps frob",
		"logs web --tail -5", "stop web --time -1s", "inspect web --measure -1s",
		"stage web b --keep 0s", "plan web b --measure -1s", "node token --ttl 0s"} {
		root := newRootCommand()
		root.SetArgs(strings.Fields(line))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		var coded *cli.Error
		if err := root.Execute(); !errors.As(err, &coded) || coded.Code != cli.ExitUsage {
			t.Errorf("godwit %s: %v, want a usage error", line, err)
		}
	}
}

func TestGroupsShowHelp(t *testing.T) {
	for _, line := range []string{"", "image", "migration", "node", "help", "help image ls", "completion"} {
		root := newRootCommand()
		root.SetArgs(strings.Fields(line))
		var out strings.Builder
		root.SetOut(&out)
		if err := root.Execute(); err != nil || !strings.Contains(out.String(), "Usage:") {
			t.Errorf("godwit %s: %v, output %q, want help", line, err, out.String())
		}
	}
}

// TestFlagsThatChange: these flags have no defaults, because settings that are not named stay.
func TestFlagsThatChange(t *testing.T) {
	for _, line := range []string{"migration set"} {
		root := newRootCommand()
		root.SetArgs(append(strings.Fields(line), "--help"))
		var out strings.Builder
		root.SetOut(&out)
		err := root.Execute()
		if own, _, found := strings.Cut(out.String(), "Global Flags:"); err != nil || !found ||
			strings.Contains(own, "default") {
			t.Errorf("godwit %s --help: %v, %s", line, err, out.String())
		}
	}
}

func TestPlaceholders(t *testing.T) {
	for use, want := range map[string][]string{
		"ps": {"", ""}, "migrate CONTAINER NODE": {"CONTAINER", "NODE", ""},
		"rm CONTAINER...":                           {"CONTAINER", "CONTAINER"},
		"exec [flags] CONTAINER COMMAND [ARG...]":   {"CONTAINER", "COMMAND", "ARG", "ARG"},
		"resolve MIGRATION --runs-at source|target": {"MIGRATION", ""},
		"join ADDRESS TOKEN --address HOST[:PORT]":  {"ADDRESS", "TOKEN", ""},
		"run [flags] IMAGE [COMMAND [ARG...]]":      {"IMAGE", "COMMAND", "ARG", "ARG"},
	} {
		for position, placeholder := range want {
			if got := placeholderAt(placeholders(use), position); got != placeholder {
				t.Errorf("argument %d of %q is %q, want %q", position, use, got, placeholder)
			}
		}
	}
}

// TestCompletionWithoutAgent: without an agent, completion of names offers nothing, and above all no files.
func TestCompletionWithoutAgent(t *testing.T) {
	for line, want := range map[string]string{
		"migrate": ":4", "stage web": ":4", "migration show": ":4", "ps": ":4", "image load": ":0",
		"image rm": ":4", "run": ":4", "run --stage-to": ":4",
	} {
		root := newRootCommand()
		root.SetArgs(append(append([]string{"__complete", "--socket", "/nonexistent"},
			strings.Fields(line)...), ""))
		var out strings.Builder
		root.SetOut(&out)
		root.SetErr(io.Discard)
		if err := root.Execute(); err != nil || !strings.Contains(out.String(), "\n"+want) &&
			!strings.HasPrefix(out.String(), want) {
			t.Errorf("godwit %s: %v, %q, want %s", line, err, out.String(), want)
		}
	}
}

// TestMigrationNames: a migration that has ended is offered to commands that show it, and not to commands
// that change it.
func TestMigrationNames(t *testing.T) {
	list := []migration.Report{
		{Migration: "first", Container: "web", Source: "a", Target: "b", Result: migration.Moved},
		{Migration: "second", Result: migration.ResultDoubt},
		{Migration: "third", Result: migration.RolledBack},
		{Migration: "fourth", Result: migration.ResultRuns},
	}
	for command, want := range map[string][]string{
		"show": {"fourth", "third", "second", "first"}, "cancel": {"fourth", "second"},
		"resolve": {"fourth", "second"},
	} {
		var got []string
		for _, name := range migrationNames(list, command) {
			id, _, _ := strings.Cut(name, "\t")
			got = append(got, id)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s is offered %q, want %q", command, got, want)
		}
	}
}
