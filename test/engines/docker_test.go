package engines

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/lab/labtest"
)

// image of the tests: a busybox.
const image = "godwit-test:1"

// count is a typical workload: it prints consecutive numbers for ever.
const count = `i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.05; done`

// bringUpDocker starts the Docker of a node, with the image.
func bringUpDocker(ctx context.Context, node string) error {
	if err := world.lab.Engines().StartDocker(ctx, node); err != nil {
		return err
	}
	return inDocker.importImage(ctx, node)
}

func makeImage(ctx context.Context, archive string) error {
	bin := filepath.Join(world.directory, "image", "bin")
	// CRIU needs a /tmp in a read-only root
	for _, dir := range []string{bin, filepath.Join(world.directory, "image", "tmp")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return fmt.Errorf("%w; busybox-static has it", err)
	}
	if err := os.WriteFile(filepath.Join(bin, "busybox"), program, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"sh", "sleep", "cat", "ps", "kill", "nc"} {
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	tar := exec.CommandContext(ctx, "tar", "-C", filepath.Join(world.directory, "image"), "-cf", archive, ".")
	if out, err := tar.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// inDocker is Docker's command line.
const inDocker = cli("docker")

// docker starts a container of Docker on node a like a user, and removes it from any node in the end.
func docker(t *testing.T, flags []string, script string) (name string) {
	t.Helper()
	if !slices.Contains(flags, "--network") {
		flags = append([]string{"--network", "none"}, flags...)
	}
	return inDocker.run(t, flags, script)
}

func migrate(t *testing.T, name, from, to, mode string) {
	t.Helper()
	inDocker.migrate(t, name, from, to, mode)
}

func begin(name, mode string) <-chan error { return inDocker.begin(name, mode) }

func counted(t *testing.T, node, name string, beyond int) int {
	t.Helper()
	return inDocker.counted(t, node, name, beyond)
}

func inspected(t *testing.T, node, name, field string) string {
	t.Helper()
	return inDocker.inspected(t, node, name, field)
}

func nothing(t *testing.T, node, name string) {
	t.Helper()
	inDocker.nothing(t, node, name)
}

// TestDockerMoves moves a container there and back in all modes, and checks that it is a container of
// Docker each time.
func TestDockerMoves(t *testing.T) {
	name := docker(t, []string{
		"--env", "COLOUR=blue", "--env", "PASSWORD=swordfish-7fe1", "--label", "team=red", "--memory", "64m",
		"--pids-limit", "50", "--restart", "always", "--init",
		"--volume", "moves-data:/data", "--tmpfs", "/scratch", "--hostname", "wader",
	}, `echo file >/file; echo data >/data/x; echo scratch >/scratch/x; `+count)
	from, to, at := "a", "b", 1
	for _, mode := range modes() {
		migrate(t, name, from, to, mode)
		nothing(t, from, name)
		from, to = to, from
		at = counted(t, from, name, at)
		if got := in(t, from, "docker", "exec", name, "/bin/sh", "-c", "echo $COLOUR; cat /file /data/x "+
			"/scratch/x /proc/sys/kernel/hostname"); got != "blue\nfile\ndata\nscratch\nwader" {
			t.Fatalf("after %s: %q", mode, got)
		}
	}
	for _, node := range []string{from, to} { // except the engine's own files
		eventually(t, "nothing of the migration has its password", func() bool {
			return in(t, node, "sh", "-c", "grep -rl --exclude-dir=dockerd --exclude-dir=images "+
				"swordfish-7fe1 /var/lib/godwit || true") == ""
		})
	}
	eventually(t, "it has its policy",
		func() bool { return inspected(t, from, name, ".HostConfig.RestartPolicy.Name") == "always" })
	for field, want := range map[string]string{
		".State.Status": "running", ".HostConfig.Memory": "67108864",
		`index .Config.Labels "team"`: "red", ".HostConfig.PidsLimit": "50", ".HostConfig.Init": "true",
	} {
		if got := inspected(t, from, name, field); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	if volumes := in(t, to, "docker", "volume", "ls", "--quiet"); volumes != "" {
		t.Errorf("volumes on %s: %s", to, volumes)
	}
	in(t, from, "docker", "stop", "--time", "1", name)
	in(t, from, "docker", "start", name) // like any other
	eventually(t, "it runs again",
		func() bool { return inspected(t, from, name, ".State.Running") == "true" })
	in(t, from, "docker", "rm", "--force", name)
	in(t, from, "docker", "volume", "rm", "moves-data")
	nothing(t, from, name)
}

// TestDockerAnonymousVolumes: volumes with names that Docker generated, for a user and for an image, move
// with their content, and survive a second move.
func TestDockerAnonymousVolumes(t *testing.T) {
	const declared = "godwit-test:volume"
	for _, node := range nodes() {
		in(t, node, "docker", "import", "--change", "VOLUME /own",
			filepath.Join(world.directory, "image.tar"), declared)
	}
	name := "anonymous"
	t.Cleanup(func() {
		for _, node := range nodes() {
			_, _ = world.lab.Exec(context.Background(), node, "docker", "rm", "--force", "--volumes", name)
		}
	})
	script := `echo kept > /data/kept; exec 3>/own/open; ` +
		`i=0; while :; do i=$((i+1)); echo $i >&3; echo tick $i; sleep 0.05; done`
	in(t, "a", "docker", "run", "--detach", "--name", name, "--network", "none", "--volume", "/data",
		declared, "/bin/sh", "-c", script)
	const mounted = `range .Mounts}}{{.Name}} {{.Destination}} {{end`
	before := strings.Fields(inspected(t, "a", name, mounted))
	slices.Sort(before)
	for _, way := range [][2]string{{"a", "b"}, {"b", "a"}} {
		last := counted(t, way[0], name, 1)
		migrate(t, name, way[0], way[1], "cold")
		counted(t, way[1], name, last)
		after := strings.Fields(inspected(t, way[1], name, mounted))
		slices.Sort(after)
		if len(before) != 4 || !slices.Equal(before, after) {
			t.Errorf("volumes on %s: %q, were %q", way[1], after, before)
		}
		if got := in(t, way[1], "docker", "exec", name, "/bin/sh", "-c",
			"cat /data/kept; read first < /own/open; echo $first"); got != "kept\n1" {
			t.Errorf("on %s it has %q", way[1], got)
		}
		if volumes := in(t, way[0], "docker", "volume", "ls", "--quiet"); volumes != "" {
			t.Errorf("volumes on %s: %s", way[0], volumes)
		}
	}
	in(t, "a", "docker", "rm", "--force", name)
	in(t, "a", "docker", "volume", "prune", "--force")
}

// TestDockerCommitted: an image committed from a container that has moved, and containers started from it,
// are independent of it.
func TestDockerCommitted(t *testing.T) {
	name := docker(t, nil, count)
	migrate(t, name, "a", "b", "cold")
	in(t, "b", "docker", "commit", name, "committed:1")
	other := name + "-other"
	t.Cleanup(func() { _, _ = world.lab.Exec(context.Background(), "b", "docker", "rm", "--force", other) })
	in(t, "b", "docker", "run", "--detach", "--name", other, "--network", "none", "committed:1", "/bin/sh",
		"-c", count)
	last := counted(t, "b", other, 1)
	migrate(t, name, "b", "a", "cold")
	counted(t, "a", name, 1)
	nothing(t, "b", name)
	counted(t, "b", other, last)
}

// TestDockerStartsNoSecondCopy: the policy "always" restarts the container at the target, and never at the
// source.
func TestDockerStartsNoSecondCopy(t *testing.T) {
	name := docker(t, []string{"--restart", "always"}, count)
	stop := fault(t, "a", agent.Fault{Side: "source", Step: "destroy", When: "before"}, agent.FaultPause)
	done := begin(name, "cold")
	stop.reached(t)
	endKeepers(t, "a")                 // otherwise its end would be delayed
	in(t, "a", "docker", "kill", name) // the frozen copy that is left
	eventually(t, "it has ended at the source",
		func() bool { return inspected(t, "a", name, ".State.Running") == "false" })
	if restarts := inspected(t, "a", name, ".RestartCount"); restarts != "0" {
		t.Errorf("started again %s times at the source", restarts)
	}
	stop.goOn(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
	nothing(t, "a", name)
	counted(t, "b", name, 1)
	pid := inspected(t, "b", name, ".State.Pid")
	in(t, "b", "kill", "-KILL", pid)
	eventually(t, "it is started again at the target", func() bool {
		return inspected(t, "b", name, ".State.Running") == "true" &&
			inspected(t, "b", name, ".State.Pid") != pid
	})
}

// TestDockerRolledBack: a failed move leaves the container unchanged from Docker's view, whatever fails.
func TestDockerRolledBack(t *testing.T) {
	for step, f := range map[string]struct {
		when string
		kind agent.FaultKind
	}{"arrive": {"after", agent.FaultFail}, "restore": {"before", agent.FaultFail},
		"receive": {"after", agent.FaultKill}} {
		t.Run(step, func(t *testing.T) {
			name := docker(t, []string{"--restart", "unless-stopped", "--volume",
				"rolled-" + step + ":/data"}, count)
			id, pid := inspected(t, "a", name, ".Id"), inspected(t, "a", name, ".State.Pid")
			point := fault(t, "b", agent.Fault{Side: "target", Step: step, When: f.when}, f.kind)
			done := begin(name, "pre-copy")
			if f.kind == agent.FaultKill {
				point.reached(t)
				eventually(t, "the agent can be started",
					func() bool { return world.lab.StartAgent(t.Context(), "b", "--faults") == nil })
			}
			if err := <-done; err == nil {
				t.Error("it moved")
			}
			counted(t, "a", name, counted(t, "a", name, 1))
			for field, want := range map[string]string{".Id": id, ".State.Pid": pid,
				".HostConfig.RestartPolicy.Name": "unless-stopped", ".RestartCount": "0"} {
				if got := inspected(t, "a", name, field); got != want {
					t.Errorf("%s is %q, was %q", field, got, want)
				}
			}
			nothing(t, "b", name)
			if volumes := in(t, "b", "docker", "volume", "ls", "--quiet"); volumes != "" {
				t.Errorf("volumes on b: %s", volumes)
			}
			in(t, "a", "docker", "rm", "--force", "--volumes", name)
			in(t, "a", "docker", "volume", "rm", "rolled-"+step)
		})
	}
}

// TestDockerEndsWhileArriving kills dockerd while a container arrives: no shim is left behind, however long
// the container's state takes.
func TestDockerEndsWhileArriving(t *testing.T) {
	had := left(t)
	name := docker(t, nil, count)
	frozen := fault(t, "a", agent.Fault{Side: "source", Step: "dump", When: "after"}, agent.FaultPause)
	done := begin(name, "pre-copy")
	frozen.reached(t)
	runtime := []string{"pgrep", "-f", "^runc .* restore .*/docker/"}
	in(t, "b", runtime...)
	in(t, "b", "sh", "-c", "kill -KILL $(cat /run/docker.pid)")
	eventually(t, "the runtime ends", func() bool { return tried(t, "b", runtime...) != nil })
	restartDaemon(t, byDocker{byCommand{inDocker}}, "b")
	frozen.goOn(t)
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no longer waits") {
		t.Errorf("%v, want that it did not move because Docker no longer waits for it", err)
	}
	counted(t, "a", name, counted(t, "a", name, 1))
	in(t, "a", "docker", "rm", "--force", name)
	now := had
	if !labtest.Within(patience, func() bool { now = left(t); return now == had }) {
		t.Errorf("there were\n%s\nand are\n%s", had, now)
	}
}

// TestDockerJournalLost loses the journal of a migration that had frozen a container: the note of its
// departure names the node to ask, and the migration's outcome decides.
func TestDockerJournalLost(t *testing.T) {
	for step, lost := range map[string]struct{ when, ends string }{"dump": {"after", "a"},
		"destroy": {"before", "b"}} {
		t.Run(step, func(t *testing.T) {
			name := docker(t, []string{"--restart", "unless-stopped", "--volume", "lost-" + step + ":/data"},
				count)
			point := fault(t, "a", agent.Fault{Side: "source", Step: step, When: lost.when}, agent.FaultKill)
			done := begin(name, "cold")
			point.reached(t)
			<-done // the agent of the request is gone
			in(t, "a", "sh", "-c", "rm -r /var/lib/godwit/migrations")
			eventually(t, "the agent can be started",
				func() bool { return world.lab.StartAgent(t.Context(), "a", "--faults") == nil })
			counted(t, lost.ends, name, counted(t, lost.ends, name, 1))
			gone := map[string]string{"a": "b", "b": "a"}[lost.ends]
			eventually(t, "nothing of it is left on "+gone, func() bool {
				return in(t, gone, "docker", "ps", "--all", "--quiet") == "" &&
					in(t, gone, "docker", "volume", "ls", "--quiet") == ""
			})
			eventually(t, "Docker restarts it again", func() bool {
				return inspected(t, lost.ends, name, ".HostConfig.RestartPolicy.Name") == "unless-stopped"
			})
			in(t, lost.ends, "docker", "rm", "--force", "--volumes", name)
			in(t, lost.ends, "docker", "volume", "rm", "lost-"+step)
		})
	}
}

// TestDockerRemovedOnTheWay: removing a container during its move removes it from all nodes.
func TestDockerRemovedOnTheWay(t *testing.T) {
	name := docker(t, nil, count)
	stop := fault(t, "a", agent.Fault{Side: "source", Step: "prepare", When: "before"}, agent.FaultPause)
	done := begin(name, "cold")
	stop.reached(t)
	in(t, "a", "docker", "rm", "--force", name)
	stop.goOn(t)
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no such container") {
		t.Errorf("what was removed: %v", err)
	}
	for _, node := range nodes() {
		nothing(t, node, name)
	}
}

// TestDockerRefused: a container that cannot move is refused with the reason, and keeps running.
func TestDockerRefused(t *testing.T) {
	for what, flags := range map[string][]string{"--pid host": {"--pid", "host"},
		"--ipc shareable":                   {"--ipc", "shareable"},
		"--security-opt seccomp=unconfined": {"--security-opt", "seccomp=unconfined"},
		"--cap-add CAP_SYS_ADMIN":           {"--cap-add", "SYS_ADMIN"},
	} {
		t.Run(strings.Trim(strings.NewReplacer(" ", "-", "=", "-").Replace(what), "-"), func(t *testing.T) {
			name := docker(t, flags, count)
			err := tried(t, "a", "godwit", "migrate", "docker:"+name, "b")
			if err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("%v, want a refusal of %s", err, what)
			}
			counted(t, "a", name, counted(t, "a", name, 1))
		})
	}
}

// TestDockerNotThere: a target whose Docker does not run refuses.
func TestDockerNotThere(t *testing.T) {
	name := docker(t, nil, count)
	if err := world.lab.Engines().StopDocker(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	err := tried(t, "a", "godwit", "migrate", "docker:"+name, "b")
	if err == nil || !strings.Contains(err.Error(), "Docker") {
		t.Errorf("%v, want that Docker does not run there", err)
	}
	if err := world.lab.Engines().StartDocker(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Docker has its image",
		func() bool { return tried(t, "b", "docker", "inspect", image) == nil })
	migrate(t, name, "a", "b", "cold")
	counted(t, "b", name, 1)
}

// TestDockerLateNetworks: a container on the node's own network moves with any Docker, and so does one on a
// bridge; but not a container on a bridge that also has a terminal, if Docker makes networks late.
func TestDockerLateNetworks(t *testing.T) {
	name := docker(t, []string{"--network", "host"}, count)
	migrate(t, name, "a", "b", "pre-copy")
	counted(t, "b", name, 1)
	in(t, "b", "docker", "rm", "--force", name)

	for _, node := range nodes() {
		in(t, node, "docker", "network", "create", "--subnet", "172.31.0.0/24", "late")
		t.Cleanup(func() {
			_, _ = world.lab.Exec(context.Background(), node, "docker", "network",
				"rm", "late")
		})
	}
	version := in(t, "b", "docker", "version", "--format", "{{.Server.Version}}")
	major, err := strconv.Atoi(strings.Split(version, ".")[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{nil, {"--tty"}} {
		docker(t, append([]string{"--network", "late"}, flags...), count)
		said, err := world.lab.Exec(t.Context(), "a", "godwit", "migrate", "--dry-run", "docker:"+name, "b")
		refused := err != nil && strings.Contains(said, "network late and a terminal")
		if refused != (major >= 28 && flags != nil) {
			t.Errorf("Docker %s, flags %v: %v: %s", version, flags, err, said)
		}
		in(t, "a", "docker", "rm", "--force", name)
	}
}
