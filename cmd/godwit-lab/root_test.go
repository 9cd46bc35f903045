package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/cli"
)

// execute runs a command line and returns its output.
func execute(line string) (string, error) {
	root := newRootCommand()
	root.SetArgs(strings.Fields(line))
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(io.Discard)
	err := root.Execute()
	return out.String(), err
}

func TestUsageErrors(t *testing.T) {
	for _, line := range []string{"frob", "help frob", "image frob", "client", "up --rtt x",
		"up --state-size x", "bench frob"} {
		var coded *cli.Error
		if _, err := execute(line); !errors.As(err, &coded) || coded.Code != cli.ExitUsage {
			t.Errorf("godwit-lab %s: %v, want a usage error", line, err)
		}
	}
}

func TestGroupsShowHelp(t *testing.T) {
	for _, line := range []string{"", "bench", "help", "help bench files", "completion"} {
		if out, err := execute(line); err != nil || !strings.Contains(out, "Usage:") {
			t.Errorf("godwit-lab %s: %v, output %q, want help", line, err, out)
		}
	}
}

// TestLinkKeeps: flags of a link have no defaults, because settings that are not named stay.
func TestLinkKeeps(t *testing.T) {
	out, err := execute("link --help")
	if err != nil || !strings.Contains(out, "--rtt") ||
		strings.Contains(strings.ReplaceAll(out, `(default "lab")`, ""), "default") {
		t.Errorf("%v, %s", err, out)
	}
}
