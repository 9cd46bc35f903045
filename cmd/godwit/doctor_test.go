package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/doctor"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// TestDoctor runs the command as users do, with a CRIU that works and with one that does not.
func TestDoctor(t *testing.T) {
	program := filepath.Join(t.TempDir(), "godwit")
	if err := labtest.GoBuild(t.Context(), program, labtest.Program); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		criu  string
		works bool
		code  int
		trial doctor.TrialResult
	}{
		{"a criu that works", os.Getenv("GODWIT_CRIU"), true, 0, doctor.Passed},
		{"a criu that fails", broken, false, cli.ExitError, doctor.Failed},
		{"a criu that is not there", "/nonexistent/criu", false, cli.ExitError, doctor.NotRun},
	} {
		t.Run(test.name, func(t *testing.T) {
			var said, complaint bytes.Buffer
			command := exec.Command(program, "doctor", "--json", "--state", t.TempDir())
			command.Env = append(os.Environ(), "GODWIT_CRIU="+test.criu)
			command.Stdout, command.Stderr = &said, &complaint
			err := command.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := command.ProcessState.ExitCode(); got != test.code {
				t.Errorf("exit code: got %d, want %d\n%s", got, test.code, complaint.String())
			}
			var report doctor.Report
			if err := json.Unmarshal(said.Bytes(), &report); err != nil {
				t.Fatalf("JSON: %v\n%s", err, said.String())
			}
			if report.Works != test.works || report.Trial.Result != test.trial {
				t.Errorf("got works %t, trial %s: %s; want %t, %s",
					report.Works, report.Trial.Result, report.Trial.Error, test.works, test.trial)
			}
			if report.Works == (report.Reason() != "") {
				t.Errorf("works %t, reason %q", report.Works, report.Reason())
			}
		})
	}
}
