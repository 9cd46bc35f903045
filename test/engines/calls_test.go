package engines

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/profiles/seccomp"
)

// TestDockerSeccomp: a container may call process_vm_writev, which the default profile of Docker 23 and
// later allows, and the target's profile forbids. The move is refused before anything moves, and by the dry
// run, if the version of the target's Docker shows it; and before the freeze if only Docker itself can
// tell.
func TestDockerSeccomp(t *testing.T) {
	const call = "process_vm_writev"
	restartDocker(t, "a", "--seccomp-profile", profile(t, "later", ""))
	name := docker(t, nil, count)
	version := in(t, "b", "docker", "version", "--format", "{{.Server.Version}}")
	dryRun := func(command string) string {
		t.Helper()
		return in(t, "a", "sh", "-c", "godwit "+command+" docker:"+name+" b 2>&1 || true")
	}
	if strings.HasPrefix(version, "20.") {
		for _, command := range []string{"migrate --dry-run", "plan", "migrate"} {
			said := dryRun(command)
			for _, want := range []string{"seccomp profile of Docker " + version + " at the target", call,
				"install Docker 23 or later"} {
				if !strings.Contains(said, want) {
					t.Errorf("godwit %s does not say %q: %s", command, want, said)
				}
			}
		}
	}
	restartDocker(t, "b", "--seccomp-profile", profile(t, "older", call))
	err := tried(t, "a", "godwit", "migrate", "docker:"+name, "b")
	const words = "seccomp profile of Docker at the target: it forbids " + call
	if err == nil || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "freeze") {
		t.Errorf("it moves, or stops for another reason: %v", err)
	}
	nothing(t, "b", name)
	at := counted(t, "a", name, 1)
	counted(t, "a", name, at)
}

// profile writes Docker's default profile without a system call.
func profile(t *testing.T, name, without string) string {
	t.Helper()
	made := seccomp.DefaultProfile()
	for _, rule := range made.Syscalls {
		rule.Names = slices.DeleteFunc(rule.Names, func(call string) bool { return call == without })
	}
	data, err := json.Marshal(made)
	path := filepath.Join(world.directory, name+".json")
	if err := errors.Join(err, os.WriteFile(path, data, 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// restartDocker restarts the Docker of a node with flags until the test ends.
func restartDocker(t *testing.T, node string, flags ...string) {
	t.Helper()
	again := func(ctx context.Context, flags ...string) {
		if err := errors.Join(world.lab.Engines().StopDocker(ctx, node),
			world.lab.Engines().StartDocker(ctx, node, flags...)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { again(context.Background()) })
	again(t.Context(), flags...)
}
