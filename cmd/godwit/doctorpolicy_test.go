package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/doctor"
)

// TestObeyedPolicy: doctor shows the policy that the running agent obeys, and reports that the file
// differs.
func TestObeyedPolicy(t *testing.T) {
	const file = "/srv/policy.json"
	if line, shown := obeyedPolicy(&api.PolicyReply{File: file}); shown {
		t.Errorf("a policy that restricts nothing is shown: %+v", line)
	}
	line, shown := obeyedPolicy(&api.PolicyReply{File: file, Restricts: []string{"modes: cold"}})
	if !shown || line.Status != doctor.Found || line.Detail != file+": modes: cold" {
		t.Errorf("%+v", line)
	}
	line, shown = obeyedPolicy(&api.PolicyReply{File: file, Changed: "it has an error"})
	if !shown || line.Status != doctor.Missing || line.Level == doctor.Required ||
		!strings.Contains(line.Detail, "it has an error") ||
		!strings.Contains(line.Detail, "restricts nothing") {
		t.Errorf("%+v", line)
	}
}

// TestWrittenPolicy: without an agent, doctor shows the file's policy, and says that it comes from the
// file.
func TestWrittenPolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"modes": ["cold"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if line, shown := writtenPolicy(file); !shown || !strings.Contains(line.Detail, "modes: cold (no agent") {
		t.Errorf("%+v", line)
	}
	if err := os.WriteFile(file, []byte(`{"mode": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if line, shown := writtenPolicy(file); !shown || line.Status != doctor.Missing {
		t.Errorf("%+v", line)
	}
}
