package main

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestUnknownCommandIsUsageError(t *testing.T) {
	for _, line := range []string{"frob", "migrat", "image frob", "migration frob", "help frob", "help image frob", "lab frob"} {
		root := newRootCommand()
		root.SetArgs(strings.Fields(line))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		var coded *codedError
		if err := root.Execute(); !errors.As(err, &coded) || coded.code != exitUsage {
			t.Errorf("godwit %s: %v, want a usage error", line, err)
		}
	}
}

func TestGroupsShowHelp(t *testing.T) {
	for _, line := range []string{"", "image", "migration", "node", "lab", "help", "help image ls", "completion"} {
		root := newRootCommand()
		root.SetArgs(strings.Fields(line))
		var out strings.Builder
		root.SetOut(&out)
		if err := root.Execute(); err != nil || !strings.Contains(out.String(), "Usage:") {
			t.Errorf("godwit %s: %v, output %q, want help", line, err, out.String())
		}
	}
}
