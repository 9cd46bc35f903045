package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMain makes the labs of these tests from the test program itself. The test program also acts as the
// godwit program towards the lab: an agent that listens at its socket and the commands that make
// identities.
func TestMain(m *testing.M) {
	RunHidden()
	if len(os.Args) > 1 && (os.Args[1] == "agent" || os.Args[1] == "node") {
		os.Exit(playGodwit(os.Args[1:]))
	}
	if len(os.Args) == 3 && os.Args[1] == "up-for-test" {
		_, err := Up(context.Background(),
			Config{Name: os.Args[2], Nodes: 3, Bare: true, NoCheck: true, Program: os.Args[0]})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// up makes a lab and removes it at the end of the test.
func up(t *testing.T, config Config) *Lab {
	t.Helper()
	config.Name, config.Program = uniqueName(t), os.Args[0]
	config.Progress = func(line string) { t.Log(line) }
	l, err := Up(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil && !errors.Is(err, ErrNoLab) {
			t.Error(err)
		}
	})
	return l
}

func uniqueName(t *testing.T) string {
	t.Helper()
	clean := func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return -1
	}
	name := strings.Map(clean, strings.ToLower(strings.TrimPrefix(t.Name(), "Test")))
	return fmt.Sprintf("%.20s-%d", name, os.Getpid())
}

// run runs a command in a machine and fails the test if it fails.
func run(t *testing.T, l *Lab, machine string, args ...string) string {
	t.Helper()
	out, err := l.Exec(t.Context(), machine, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// traces lists leftovers of a lab on the machine: files, mounts, cgroups, processes, interfaces.
func traces(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		filepath.Join(RunDirectory, name), lockPath(name), filepath.Join(StateDirectory, name),
		"/sys/fs/cgroup/" + cgroupTop + "/" + name, "/sys/fs/cgroup/*/" + cgroupTop + "/" + name,
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(mounts), "\n") {
		if strings.Contains(line, name) {
			found = append(found, "mount "+line)
		}
	}
	return append(found, processesOf(t, name)...)
}

// processesOf lists the processes that have the lab in their arguments or in their cgroups, except zombies,
// which the machine's init reaps.
func processesOf(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	directories, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, directory := range directories {
		arguments, _ := os.ReadFile(filepath.Join(directory, "cmdline")) // the process may have ended
		groups, _ := os.ReadFile(filepath.Join(directory, "cgroup"))
		if pid, err := strconv.Atoi(filepath.Base(directory)); err != nil || startTime(pid) == 0 {
			continue
		}
		if strings.Contains(string(arguments), name) || strings.Contains(string(groups), cgroupTop+"/"+name) {
			found = append(found, fmt.Sprintf("process %s: %q", filepath.Base(directory), arguments))
		}
	}
	return found
}

// machineView lists the machine's own networks and mounts.
func machineView(t *testing.T) []string {
	t.Helper()
	var view []string
	for _, command := range [][]string{
		{"ip", "-o", "link"}, {"ip", "-4", "route"}, {"ip", "rule"}, {"ip", "netns", "list"},
		{"findmnt", "-rno", "TARGET,FSTYPE"},
	} {
		out, err := exec.Command(command[0], command[1:]...).Output()
		if err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		view = append(view, strings.Split(string(out), "\n")...)
	}
	return view
}

// added lists what the machine sees now and did not before. Parallel tests come and go; what stays is ours.
func added(t *testing.T, before []string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stays := missing(machineView(t), before)
	_ = poll(ctx, func() (bool, error) { // in time or not: leftovers are reported
		now := machineView(t)
		stays = slices.DeleteFunc(stays, func(line string) bool { return !slices.Contains(now, line) })
		return len(stays) == 0, nil
	})
	return stays
}

// within polls a condition until it holds.
func within(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := poll(ctx, func() (bool, error) { return condition(), nil }); err != nil {
		t.Fatalf("%s: not within %s", what, limit)
	}
}

// missing lists the elements of one list that the other lacks.
func missing(in, of []string) []string {
	return slices.DeleteFunc(slices.Clone(in), func(s string) bool { return slices.Contains(of, s) })
}
