package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/await"
)

// buildProgram builds the smallest program that contains ServeTrial.
func buildProgram(t *testing.T) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trial")
	command := exec.Command("go", "build", "-o", path, "./testdata/trial")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build the trial's program: %v\n%s", err, output)
	}
	return []string{path}
}

// installed finds the tools of this machine.
func installed(t *testing.T) tools {
	t.Helper()
	criu, err := findTool("criu", "GODWIT_CRIU")
	if err != nil {
		t.Fatalf("criu: %v; run make setup", err)
	}
	runc, err := findTool("runc", "GODWIT_RUNC")
	if err != nil {
		t.Fatalf("runc: %v; run make setup", err)
	}
	return tools{criu: criu, runc: runc}
}

// script makes a program of the given shell text.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// expectNothingLeft fails if a trial in this state directory has left a file, process, mount or cgroup
// behind.
func expectNothingLeft(t *testing.T, state string) {
	t.Helper()
	entries, err := os.ReadDir(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		t.Errorf("left behind: %s", filepath.Join(state, entry.Name()))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), state) {
		t.Errorf("left behind: a mount under %s", state)
	}
	name := containerOf(state)
	for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
		left, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range left {
			t.Errorf("left behind: cgroup %s", path)
		}
	}
}

func TestTrialPasses(t *testing.T) {
	state := t.TempDir()
	result := runTrial(t.Context(), installed(t), buildProgram(t), state)
	if result.Result != Passed || result.Error != "" || result.Advice != nil {
		t.Fatalf("trial: %+v", result)
	}
	var names []string
	for _, step := range result.Steps {
		names = append(names, step.Name)
	}
	if got, want := strings.Join(names, " "), "start connect checkpoint restore answer"; got != want {
		t.Errorf("steps: got %q, want %q", got, want)
	}
	expectNothingLeft(t, state)
}

func TestTrialFails(t *testing.T) {
	good := installed(t)
	program := buildProgram(t)
	for _, test := range []struct {
		name    string
		tools   tools
		program []string
		said    string
		advice  Advice
	}{
		{
			name: "criu that fails", tools: tools{criu: script(t, "exit 1"), runc: good.runc},
			program: program,
			said:    "checkpoint: ", advice: adviceCRIU,
		},
		{
			name: "criu that dumps and cannot restore", program: program,
			tools: tools{criu: script(t, onlyDump(good.criu)), runc: good.runc},
			said:  "restore: ", advice: adviceCRIU,
		},
		{
			name: "runc that fails", tools: tools{criu: good.criu, runc: script(t, "exit 3")},
			program: program,
			said:    "start: runc: exit status 3", advice: adviceRunc,
		},
		{
			name: "program that needs a loader", tools: good, program: []string{"/bin/sh"},
			said: errDynamic.Error(), advice: adviceStatic,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := t.TempDir()
			result := runTrial(t.Context(), test.tools, test.program, state)
			if result.Result != Failed || !strings.Contains(result.Error, test.said) {
				t.Errorf("got %s: %q, want failed: %q", result.Result, result.Error, test.said)
			}
			if result.Advice == nil || *result.Advice != test.advice {
				t.Errorf("advice: got %+v, want %+v", result.Advice, test.advice)
			}
			expectNothingLeft(t, state)
		})
	}
}

// onlyDump returns a criu that works until there is a dump beside the trial's bin/criu.
func onlyDump(criu string) string {
	return `[ ! -e "$(dirname "$0")/../images/inventory.img" ] || exit 1
exec ` + criu + ` "$@"`
}

func TestTrialCleansUpWhatAKilledOneLeft(t *testing.T) {
	state := t.TempDir()
	tools, program := installed(t), buildProgram(t)
	killed, err := newTrial(t.Context(), tools, program, state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(killed.namespace.close)
	if err := killed.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	server := processOf(t, killed)
	// This has the same effect as the death of a process: its locks are released. (Its namespace lives on
	// in the container.)
	if err := killed.lock.Close(); err != nil {
		t.Fatal(err)
	}
	if result := runTrial(t.Context(), tools, program, state); result.Result != Passed {
		t.Fatalf("trial after one that was killed: %+v", result)
	}
	if state := processState(server); state != "" && state != "Z" {
		t.Errorf("process %d of the killed trial's container lives on, in state %s", server, state)
	}
	expectNothingLeft(t, state)
}

// processOf returns the first process of a trial's container.
func processOf(t *testing.T, trial *trial) int {
	t.Helper()
	state, err := os.ReadFile(filepath.Join(trial.directory, "runc", trial.container, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var content struct {
		PID int `json:"init_process_pid"`
	}
	if err := json.Unmarshal(state, &content); err != nil || content.PID == 0 {
		t.Fatalf("runc's state of the trial's container: %v\n%s", err, state)
	}
	return content.PID
}

// processState returns the letter of a process's state, empty if there is no such process. The new parent
// of a container's process may leave it a zombie for a while.
func processState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}

func TestTrialInterrupted(t *testing.T) {
	state := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	// This criu never ends; the user's interrupt comes while it runs.
	marker := filepath.Join(t.TempDir(), "running")
	slow := script(t, "touch "+marker+"; exec sleep 60")
	go func() {
		defer cancel()
		await.Within(await.Limit, func() bool {
			_, err := os.Stat(marker)
			return err == nil
		})
	}()
	result := runTrial(ctx, tools{criu: slow, runc: installed(t).runc}, buildProgram(t), state)
	if result.Result != Failed || !strings.Contains(result.Error, context.Canceled.Error()) {
		t.Errorf("got %s: %q, want it interrupted", result.Result, result.Error)
	}
	expectNothingLeft(t, state)
}

func TestTrialsWaitForEachOther(t *testing.T) {
	state := t.TempDir()
	first, err := openWorkplace(t.Context(), state)
	if err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := openWorkplace(waiting, state); err == nil {
		t.Error("two trials in one state directory at the same time")
	}
	if err := first.close(); err != nil {
		t.Fatal(err)
	}
	second, err := openWorkplace(t.Context(), state)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	if err := second.close(); err != nil {
		t.Fatal(err)
	}
}
