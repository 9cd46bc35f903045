package engines

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
)

// inPodman is Podman's command line.
const inPodman = cli("podman")

// bringUpPodman prepares Podman on a node, like its administrator, with the image.
func bringUpPodman(ctx context.Context, node string) error {
	if err := world.lab.Engines().PreparePodman(ctx, node); err != nil {
		return err
	}
	script := `set -e; mkdir -p /etc/containers/containers.conf.d; printf '[containers]\ninit_path = "%s"\n' "$(command -v docker-init)" >/etc/containers/containers.conf.d/60-init.conf
		godwit engine setup podman` // Podman's own init is optional
	if _, err := world.lab.Exec(ctx, node, "sh", "-c", script); err != nil {
		return err
	}
	return inPodman.importImage(ctx, node)
}

// podman starts a container of Podman on node a.
func podman(t *testing.T, flags []string, script string) (name string) {
	t.Helper()
	return inPodman.run(t, append([]string{"--network", "none"}, flags...), script)
}

// unguarded checks that Podman may start any container of a node.
func unguarded(t *testing.T, node string) {
	t.Helper()
	eventually(t, "there are no guards on "+node, func() bool {
		return !strings.Contains(in(t, node, "sh", "-c", "ls /usr/share/containers/oci/hooks.d "+
			"2>/dev/null || true"), "godwit")
	})
}

// TestPodmanMoves moves a container there and back in all modes, and checks that it is a container of
// Podman each time.
func TestPodmanMoves(t *testing.T) {
	name := podman(t, []string{
		"--env", "COLOUR=blue", "--label", "team=red", "--memory", "64m", "--pids-limit", "50", "--restart",
		"always",
		"--volume", "moves-data:/data", "--tmpfs", "/scratch", "--hostname", "wader", "--volume", "/own",
	},
		`echo file >/file; echo data >/data/x; echo own >/own/x; echo scratch >/scratch/x; echo shared >/dev/shm/x; exec 3</dev/shm/x; `+count)
	from, to, at := "a", "b", 1
	for _, mode := range modes() {
		inPodman.migrate(t, name, from, to, mode)
		inPodman.nothing(t, from, name)
		unguarded(t, from)
		from, to = to, from
		at = inPodman.counted(t, from, name, at)
		script := "echo $COLOUR; cat /file /data/x /own/x /scratch/x /dev/shm/x /proc/sys/kernel/hostname"
		if got := in(t, from, "podman", "exec", name, "/bin/sh",
			"-c", script); got != "blue\nfile\ndata\nown\nscratch\nshared\nwader" {
			t.Fatalf("after %s: %q", mode, got)
		}
		unguarded(t, from)
		if said := in(t, from, "sh", "-c", "PODMAN_IGNORE_CGROUPSV1_WARNING=1 podman logs "+name+
			" 2>&1 >/dev/null"); said != "" {
			t.Errorf("after %s its log has errors: %s", mode, said)
		}
	}
	for field, want := range map[string]string{
		".State.Status": "running", ".HostConfig.Memory": "67108864",
		".HostConfig.RestartPolicy.Name": "always",
		`index .Config.Labels "team"`:    "red", ".HostConfig.PidsLimit": "50",
	} {
		if got := inPodman.inspected(t, from, name, field); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	if volumes := in(t, to, "podman", "volume", "ls", "--quiet"); volumes != "" {
		t.Errorf("volumes on %s: %s", to, volumes)
	}
	if listed := in(t, from, "godwit", "ps"); !strings.Contains(listed, "podman:"+name) {
		t.Errorf("godwit ps: %s", listed)
	}
	if said := in(t, from, "godwit", "exec", "podman:"+name, "/bin/sh", "-c", "echo hello"); said != "hello" {
		t.Errorf("godwit exec: %q", said)
	}
	in(t, from, "podman", "stop", "--time=0", name)
	in(t, from, "podman", "start", name) // like any other
	eventually(t, "it runs again",
		func() bool { return inPodman.inspected(t, from, name, ".State.Running") == "true" })
	in(t, from, "godwit", "rm", "--force", "podman:"+name)
	in(t, from, "podman", "volume", "prune", "--force")
	inPodman.nothing(t, from, name)
}

// TestPodmanRuntime: a container with Podman's default runtime, runc or crun, leaves in all modes.
func TestPodmanRuntime(t *testing.T) {
	all := modes()
	if testing.Short() {
		all = all[:1]
	}
	for _, mode := range all {
		t.Run(mode, func(t *testing.T) {
			name := podman(t, []string{"--volume", "runtime-" + mode + ":/data"},
				`echo shared >/dev/shm/x; exec 3</dev/shm/x; `+count)
			runtime := inPodman.inspected(t, "a", name, ".OCIRuntime")
			if told := os.Getenv("GODWIT_LAB_RUNTIME"); told != "" && runtime != told {
				t.Fatalf("Podman takes %s, and was told %s", runtime, told)
			}
			last := inPodman.counted(t, "a", name, 1)
			inPodman.migrate(t, name, "a", "b", mode)
			inPodman.nothing(t, "a", name)
			inPodman.counted(t, "b", name, last)
			if got := in(t, "b", "podman", "exec", name, "cat", "/dev/shm/x"); got != "shared" {
				t.Errorf("from %s: %q", runtime, got)
			}
			if now := inPodman.inspected(t, "b", name, ".OCIRuntime"); now != "godwit" {
				t.Errorf("from %s to %s", runtime, now)
			}
			in(t, "b", "podman", "rm", "--force", "--time=0", "--volumes", name)
			in(t, "b", "podman", "volume", "rm", "--force", "runtime-"+mode)
			t.Logf("a container of %s has moved", runtime)
		})
	}
}

// TestPodmanStartsNoSecondCopy: the policy "always" restarts the container at the target, and never at the
// source.
func TestPodmanStartsNoSecondCopy(t *testing.T) {
	name := podman(t, []string{"--restart", "always"}, count)
	stop := fault(t, "a", agent.Fault{Side: "source", Step: "destroy", When: "before"}, agent.FaultPause)
	done := inPodman.begin(name, "cold")
	stop.reached(t)
	pid := inPodman.inspected(t, "a", name, ".State.Pid")
	endKeepers(t, "a")               // otherwise its end would be delayed
	in(t, "a", "kill", "-KILL", pid) // as the kernel does when memory is short
	in(t, "a", "sh", "-c", "echo THAWED > $(find /sys/fs/cgroup/freezer -name 'libpod-*' -type d | head "+
		"-1)/freezer.state 2>/dev/null || true")
	eventually(t, "it has ended at the source",
		func() bool { return inPodman.inspected(t, "a", name, ".State.Running") == "false" })
	err := tried(t, "a", "podman", "start", name) // crun does not show the output of a hook
	if said := fmt.Sprint(err); err == nil || !strings.Contains(said, "moving") &&
		!strings.Contains(said, "executing hook") {
		t.Errorf("started by hand at the source: %v", err)
	}
	stop.goOn(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
	inPodman.nothing(t, "a", name)
	unguarded(t, "a")
	unguarded(t, "b") // from then on Podman restarts it
	inPodman.counted(t, "b", name, 1)
	pid = inPodman.inspected(t, "b", name, ".State.Pid")
	in(t, "b", "kill", "-KILL", pid)
	eventually(t, "it is started again at the target", func() bool {
		return inPodman.inspected(t, "b", name, ".State.Running") == "true" &&
			inPodman.inspected(t, "b", name, ".State.Pid") != pid
	})
}

// TestPodmanOrphan: Godwit shows a container that was resumed without Podman's knowledge as long as it
// runs. It belongs to Podman again when it has ended.
func TestPodmanOrphan(t *testing.T) {
	if testing.Short() {
		return
	}
	const still = "while :; do sleep 0.1; done" // it prints nothing: the reader has ended with Podman
	name := podman(t, nil, "echo tick 1; echo tick 2; "+still)
	point := fault(t, "b", agent.Fault{Side: "target", Step: "restore", When: "before"}, agent.FaultPause)
	done := inPodman.begin(name, "pre-copy")
	point.reached(t)
	const groups = `cd /sys/fs/cgroup/freezer 2>/dev/null || cd /sys/fs/cgroup; `
	starts := in(t, "b", "pgrep", "-f", "^podman start ")
	in(t, "b", "sh", "-c", groups+`mkdir orphan && echo `+starts+
		` >orphan/cgroup.procs && { echo FROZEN >orphan/freezer.state || echo 1 >orphan/cgroup.freeze; } 2>/dev/null`)
	point.goOn(t)
	eventually(t, "it runs at b", func() bool {
		return in(t, "b", "sh", "-c", "find "+
			"/var/lib/godwit/engines/podman -name resumed") != ""
	})
	in(t, "b", "sh", "-c", groups+`kill -KILL `+starts+
		`; { echo THAWED >orphan/freezer.state || true; } 2>/dev/null; until rmdir orphan; do :; done`)
	if err := <-done; err != nil {
		t.Error(err)
	}
	inPodman.nothing(t, "a", name)
	eventually(t, "the migration says why it is not over", func() bool {
		return strings.Contains(in(t, "b", "sh", "-c", "for id in $(ls /var/lib/godwit/migrations); do "+
			"godwit migration show ${id%.*} 2>&1; done; true"), "its start by Podman has failed")
	})
	in(t, "b", "pgrep", "-f", still)
	if err := tried(t, "b", "podman", "start", name); err == nil {
		t.Error("Podman has started a second one")
	}
	_ = tried(t, "b", "pkill", "-KILL", "-f", still) // unless Podman ended it when its own start failed
	unguarded(t, "b")
	noRecords(t, "b", "podman")
	in(t, "b", "podman", "start", name)
}

// TestPodmanRolledBack: a failed move leaves the container unchanged from Podman's view, whatever fails.
func TestPodmanRolledBack(t *testing.T) {
	for step, f := range map[string]struct {
		when string
		kind agent.FaultKind
	}{"restore": {"before", agent.FaultFail}, "receive": {"after", agent.FaultKill}} {
		t.Run(step, func(t *testing.T) {
			name := podman(t, []string{"--restart", "unless-stopped", "--volume",
				"rolled-" + step + ":/data"}, count)
			id, pid := inPodman.inspected(t, "a", name, ".Id"), inPodman.inspected(t, "a", name, ".State.Pid")
			point := fault(t, "b", agent.Fault{Side: "target", Step: step, When: f.when}, f.kind)
			done := inPodman.begin(name, "pre-copy")
			if f.kind == agent.FaultKill {
				point.reached(t)
				eventually(t, "the agent can be started",
					func() bool { return world.lab.StartAgent(t.Context(), "b", "--faults") == nil })
			}
			if err := <-done; err == nil {
				t.Error("it moved")
			}
			inPodman.counted(t, "a", name, inPodman.counted(t, "a", name, 1))
			for field, want := range map[string]string{".Id": id, ".State.Pid": pid,
				".HostConfig.RestartPolicy.Name": "unless-stopped", ".RestartCount": "0"} {
				if got := inPodman.inspected(t, "a", name, field); got != want {
					t.Errorf("%s is %q, was %q", field, got, want)
				}
			}
			inPodman.nothing(t, "b", name)
			unguarded(t, "a")
			unguarded(t, "b")
			if volumes := in(t, "b", "podman", "volume", "ls", "--quiet"); volumes != "" {
				t.Errorf("volumes on b: %s", volumes)
			}
			in(t, "a", "podman", "rm", "--force", "--time=0", "--volumes", name)
			in(t, "a", "podman", "volume", "rm", "rolled-"+step)
		})
	}
}

// TestPodmanRemovedOnTheWay: removing a container while it arrives, or while it leaves, results in one
// container or none, never two.
func TestPodmanRemovedOnTheWay(t *testing.T) {
	name := podman(t, nil, count)
	came := false
	t.Run("arriving", func(t *testing.T) {
		stop := fault(t, "b", agent.Fault{Side: "target", Step: "receive", When: "before"}, agent.FaultPause)
		done := inPodman.begin(name, "pre-copy")
		stop.reached(t)
		removed := make(chan error, 1)
		go func() {
			_, err := world.lab.Exec(context.Background(), "b", "podman", "rm", "--force", "--time=0", name)
			removed <- err
		}()
		stop.goOn(t)
		moved, rm := <-done, <-removed
		here, there := tried(t, "a", "podman", "container", "exists", name) == nil,
			tried(t, "b", "podman", "container", "exists", name) == nil
		came = moved == nil
		if here && there || moved == nil && rm == nil && (here || there) || moved != nil && !here {
			t.Errorf("moved: %v, removed: %v, at the source: %t, at the target: %t", moved, rm, here, there)
		}
	})
	if tried(t, "a", "podman", "container", "exists", name) != nil { // it had moved before the removal
		in(t, "a", "podman", "run", "--detach", "--name", name, "--network", "none", image, "/bin/sh", "-c",
			count)
	}
	t.Run("leaving", func(t *testing.T) {
		stop := fault(t, "a", agent.Fault{Side: "source", Step: "prepare", When: "before"}, agent.FaultPause)
		done := inPodman.begin(name, "cold")
		stop.reached(t)
		in(t, "a", "podman", "rm", "--force", "--time=0", name)
		stop.goOn(t)
		if err := <-done; err == nil || !strings.Contains(err.Error(), "no such container") {
			t.Errorf("what was removed: %v", err)
		}
	})
	for _, node := range nodes() {
		if node == "b" && came { // the agent forgets a container that Podman removed at its next start
			eventually(t, "the second arrival is undone",
				func() bool { return tried(t, "b", "podman", "container", "exists", name) != nil })
			continue
		}
		inPodman.nothing(t, node, name)
		unguarded(t, node)
	}
}

// TestPodmanKilledOnTheWay: killing a container that is frozen for a move ends it, unless it has moved; it
// is restarted nowhere.
func TestPodmanKilledOnTheWay(t *testing.T) {
	name := podman(t, []string{"--restart", "always"}, count)
	stop := fault(t, "a", agent.Fault{Side: "source", Step: "dump", When: "after"}, agent.FaultPause)
	done := inPodman.begin(name, "cold")
	stop.reached(t)
	killed := make(chan error, 1)
	go func() { // it waits for the container to end
		_, err := world.lab.Exec(context.Background(), "a", "podman", "kill", name)
		killed <- err
	}()
	eventually(t, "it is being killed", func() bool {
		return in(t, "a", "sh", "-c", "ps ax | grep 'podman kill' | grep -v grep || true") != "" ||
			len(killed) > 0
	})
	stop.goOn(t)
	moved := <-done
	if err := <-killed; err != nil {
		t.Logf("podman kill: %v", err)
	}
	if moved == nil {
		inPodman.nothing(t, "a", name)
		inPodman.counted(t, "b", name, inPodman.counted(t, "b", name, 1))
	} else {
		eventually(t, "it has ended",
			func() bool { return inPodman.inspected(t, "a", name, ".State.Running") == "false" })
		inPodman.nothing(t, "b", name)
	}
	unguarded(t, "a")
	unguarded(t, "b")
}

// TestPodmanStartsLate: until shortly before the freeze, Podman answers at the target, and starts nothing;
// files that came before it starts the container are unchanged, whatever Podman writes then.
func TestPodmanStartsLate(t *testing.T) {
	name := podman(t, []string{"--volume", "late-data:/data", "--tmpfs", "/scratch:size=1m"},
		`rm -f /etc/mtab; echo data >/data/x; echo scratch >/scratch/x; echo shared >/dev/shm/x; `+count)
	near := fault(t, "a", agent.Fault{Side: "source", Step: "prepare", When: "before"}, agent.FaultPause)
	done := inPodman.begin(name, "pre-copy")
	near.reached(t)
	eventually(t, "it is made at the target", func() bool {
		state := in(t, "b", "podman", "ps", "--all", "--filter", "name=^"+name+"$", "--format", "{{.State}}")
		return strings.EqualFold(state, "created") // the spellings of Podman 4 and 5
	})
	near.goOn(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	inPodman.nothing(t, "a", name)
	inPodman.counted(t, "b", name, inPodman.counted(t, "b", name, 1))
	script := "cat /data/x /scratch/x /dev/shm/x; [ -L /etc/mtab ] || echo none"
	if got := in(t, "b", "podman", "exec", name, "/bin/sh", "-c",
		script); got != "data\nscratch\nshared\nnone" {
		t.Errorf("%q", got)
	}
	if left := in(t, "b", "sh", "-c", "find /var/lib/containers/storage -name '*.godwit'"); left != "" {
		t.Errorf("left: %s", left)
	}
	in(t, "b", inPodman.remove(name)...)
	in(t, "b", "podman", "volume", "prune", "--force")
}

// TestPodmanRefused: a container that cannot move is refused with the reason, and keeps running.
func TestPodmanRefused(t *testing.T) {
	in(t, "a", "podman", "pod", "create", "--infra=false", "some")
	t.Cleanup(func() {
		_, _ = world.lab.Exec(context.Background(), "a", "podman", "pod", "rm", "--force",
			"some")
	})
	in(t, "a", "sh", "-c", "echo hush | podman secret create refused -")
	t.Cleanup(func() {
		_, _ = world.lab.Exec(context.Background(), "a", "podman", "secret", "rm",
			"refused")
	})
	for what, flags := range map[string][]string{
		"--pid host": {"--network", "none", "--pid", "host"}, "pod of container": {"--pod", "some"},
		"--secret, type=env": {"--network", "none", "--secret", "refused,type=env,target=TOKEN"},
		"--sysctl":           {"--network", "none", "--sysctl", "net.core.somaxconn=128"},
	} {
		t.Run(strings.Trim(strings.NewReplacer(" ", "-", "=", "-", ",", "").Replace(what), "-"),
			func(t *testing.T) {
				name := inPodman.run(t, flags, count)
				err := tried(t, "a", "godwit", "migrate", "podman:"+name, "b")
				if err == nil || !strings.Contains(err.Error(), what) {
					t.Errorf("%v, want a refusal of %s", err, what)
				}
				inPodman.counted(t, "a", name, inPodman.counted(t, "a", name, 1))
			})
	}
}

// TestPodmanShared: a container whose network another one shares is refused, as is the other one.
func TestPodmanShared(t *testing.T) {
	name := podman(t, nil, count)
	guest := name + "-guest"
	t.Cleanup(func() { _, _ = world.lab.Exec(context.Background(), "a", inPodman.remove(guest)...) })
	in(t, "a", "podman", "run", "--detach", "--name", guest, "--network", "container:"+name, image, "/bin/sh",
		"-c", count)
	for moved, why := range map[string]string{name: "net namespace", guest: "move together"} {
		if err := tried(t, "a", "godwit", "migrate", "podman:"+moved, "b"); err == nil ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want a refusal", moved, err)
		}
	}
	in(t, "a", inPodman.remove(guest)...)
	inPodman.migrate(t, name, "a", "b", "cold")
	inPodman.counted(t, "b", name, 1)
}

// TestPodmanSetup: the setup of an engine can be removed when no container needs it, and a target without
// setup refuses.
func TestPodmanSetup(t *testing.T) {
	name := podman(t, nil, count)
	in(t, "b", "godwit", "engine", "remove", "podman")
	err := tried(t, "a", "godwit", "migrate", "podman:"+name, "b")
	if err == nil || !strings.Contains(err.Error(), "runtime godwit of Podman") {
		t.Errorf("%v, want that it is not set up", err)
	}
	if said := in(t, "b", "sh", "-c", "godwit doctor || true"); !strings.Contains(said,
		"godwit engine setup podman") {
		t.Errorf("doctor does not say that Podman is not set up: %s", said)
	}
	in(t, "b", "godwit", "engine", "setup", "podman")
	inPodman.migrate(t, name, "a", "b", "cold")
	if err := tried(t, "b", "godwit", "engine", "remove", "podman"); err == nil ||
		!strings.Contains(err.Error(), name) {
		t.Errorf("%v, want that %s needs it", err, name)
	}
	inPodman.counted(t, "b", name, 1)
}
