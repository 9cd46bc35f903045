package engines

import (
	"context"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
)

// ctrImage is containerd's name for the tests' image.
const ctrImage = "docker.io/library/" + image

// bringUpContainerd starts the containerd of a node, with the image in two namespaces.
func bringUpContainerd(ctx context.Context, node string) error {
	if err := world.lab.Engines().StartContainerd(ctx, node); err != nil {
		return err
	}
	script := "set -e; godwit engine setup containerd; docker save " + image +
		" >/tmp/image.tar; for n in default own; do ctr -n $n images import /tmp/image.tar; done; rm " +
		"/tmp/image.tar"
	_, err := world.lab.Exec(ctx, node, "sh", "-c", script)
	return err
}

// ctr starts a container of containerd on node a, which logs to a file, and removes it from any node in the
// end.
func ctr(t *testing.T, namespace string, flags []string, script string) (name string) {
	t.Helper()
	return ctrOf(t, namespace, ctrImage, flags, script)
}

// ctrOf starts a container from an image.
func ctrOf(t *testing.T, namespace, ref string, flags []string, script string) (name string) {
	t.Helper()
	id := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(t.Name(), "TestContainerd"), "/", "-"))
	t.Cleanup(func() {
		for _, node := range nodes() {
			remove := []string{"godwit", "rm", "--force", "containerd:" + inNamespace(namespace, id)}
			_, _ = world.lab.Exec(context.Background(), node, remove...) // it is on one of them, or on none
		}
	})
	args := append([]string{"ctr", "-n", namespace, "run", "--detach", "--log-uri",
		"file:///run/" + id + ".log"}, flags...)
	in(t, "a", append(args, ref, id, "/bin/sh", "-c", script)...)
	name = inNamespace(namespace, id)
	ctrCounted(t, "a", name, 1)
	return name
}

// ctrCounted waits until a container has counted beyond a number, checks that it has skipped none, and
// returns its current number.
func ctrCounted(t *testing.T, node, name string, beyond int) int {
	t.Helper()
	return countedIn(t, name+" on "+node,
		func() string { return in(t, node, "godwit", "logs", "containerd:"+name) }, beyond)
}

// inNamespace returns Godwit's name for a container of containerd.
func inNamespace(namespace, id string) string {
	if namespace == "default" {
		return id
	}
	return namespace + "." + id
}

// ctrNothing checks that a node has nothing of a container or of its move.
func ctrNothing(t *testing.T, node, namespace string) {
	t.Helper()
	for _, kind := range []string{"containers", "tasks", "snapshots"} {
		// the source may have given up earlier
		eventually(t, kind+" of "+namespace+" on "+node+" are gone", func() bool {
			return in(t, node, "sh", "-c", "ctr -n "+namespace+" "+kind+
				" ls | grep -v -e ^KEY -e ^TASK -e ^CONTAINER -e Committed || true") == ""
		})
	}
	noRecords(t, node, "containerd*")
}

// TestContainerdMoves moves a container there and back in all modes, in a separate namespace.
func TestContainerdMoves(t *testing.T) {
	name := ctr(t, "own", []string{"--env", "COLOUR=blue", "--label", "team=red", "--memory-limit",
		"67108864"}, `echo file >/file; echo shared >/dev/shm/x; `+count)
	from, to, at := "a", "b", 1
	for _, mode := range modes() {
		in(t, from, "godwit", "migrate", "--mode", mode, "containerd:"+name, to)
		ctrNothing(t, from, "own")
		from, to = to, from
		at = ctrCounted(t, from, name, at)
		if got := in(t, from, "ctr", "-n", "own", "task", "exec", "--exec-id", mode, "moves", "/bin/sh",
			"-c", "echo $COLOUR; cat /file /dev/shm/x"); got != "blue\nfile\nshared" {
			t.Fatalf("after %s: %q", mode, got)
		}
	}
	if listed := in(t, from, "ctr", "-n", "own", "tasks", "ls"); !strings.Contains(listed, "RUNNING") {
		t.Errorf("tasks on %s: %s", from, listed)
	}
	if info := in(t, from, "ctr", "-n", "own", "containers", "info", "moves"); !strings.Contains(info,
		`"team": "red"`) || !strings.Contains(info, "67108864") {
		t.Errorf("on %s it is %s", from, info)
	}
	if listed := in(t, from, "godwit", "ps"); !strings.Contains(listed, "containerd:own.moves") {
		t.Errorf("godwit ps: %s", listed)
	}
	if said := in(t, from, "godwit", "exec", "containerd:"+name, "/bin/sh", "-c",
		"echo hello"); said != "hello" {
		t.Errorf("godwit exec: %q", said)
	}
	in(t, from, "ctr", "-n", "own", "task", "kill", "-s", "KILL", "moves")
	eventually(t, "it has ended",
		func() bool { return strings.Contains(in(t, from, "ctr", "-n", "own", "tasks", "ls"), "STOPPED") })
	in(t, from, "ctr", "-n", "own", "task", "rm", "moves")
	in(t, from, "ctr", "-n", "own", "task", "start", "--detach", "--null-io", "moves") // like any other
	in(t, from, "godwit", "rm", "--force", "containerd:"+name)
	ctrNothing(t, from, "own")
}

// TestContainerdRolledBack: a failed move leaves the container unchanged, whatever fails.
func TestContainerdRolledBack(t *testing.T) {
	for step, f := range map[string]struct {
		when string
		kind agent.FaultKind
	}{"restore": {"before", agent.FaultFail}, "receive": {"after", agent.FaultKill}} {
		t.Run(step, func(t *testing.T) {
			name := ctr(t, "default", nil, count)
			before := in(t, "a", "ctr", "tasks", "ls")
			point := fault(t, "b", agent.Fault{Side: "target", Step: step, When: f.when}, f.kind)
			done := cli("containerd").begin(name, "pre-copy")
			if f.kind == agent.FaultKill {
				point.reached(t)
				eventually(t, "the agent can be started",
					func() bool { return world.lab.StartAgent(t.Context(), "b", "--faults") == nil })
			}
			if err := <-done; err == nil {
				t.Error("it moved")
			}
			ctrCounted(t, "a", name, ctrCounted(t, "a", name, 1))
			if after := in(t, "a", "ctr", "tasks", "ls"); after != before {
				t.Errorf("tasks are %s, were %s", after, before)
			}
			ctrNothing(t, "b", "default")
		})
	}
}

// TestContainerdAgentKilled: killing an agent right after the commit ends no container.
func TestContainerdAgentKilled(t *testing.T) {
	name := ctr(t, "default", nil, count)
	point := fault(t, "b", agent.Fault{Side: "target", Step: "restore", When: "after"}, agent.FaultKill)
	done := cli("containerd").begin(name, "cold")
	point.reached(t)
	eventually(t, "the agent can be started",
		func() bool { return world.lab.StartAgent(t.Context(), "b", "--faults") == nil })
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctrCounted(t, "b", name, 1)
	ctrNothing(t, "a", "default")
}

// TestContainerdKilled: a containerd that is killed while a container arrives, and comes back, has nothing
// of it, and the container keeps running.
func TestContainerdKilled(t *testing.T) {
	name := ctr(t, "default", nil, count)
	point := fault(t, "b", agent.Fault{Side: "target", Step: "receive", When: "after"}, agent.FaultPause)
	done := cli("containerd").begin(name, "cold")
	point.reached(t)
	in(t, "b", "sh", "-c", "kill -KILL $(pgrep -f '[c]ontainerd --config /dev/null')")
	point.goOn(t)
	if err := <-done; err == nil {
		t.Error("it moved")
	}
	ctrCounted(t, "a", name, ctrCounted(t, "a", name, 1))
	if err := world.lab.Engines().StartContainerd(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "containerd has nothing of it",
		func() bool { return in(t, "b", "sh", "-c", "ctr containers ls -q; ctr tasks ls -q") == "" })
	ctrNothing(t, "b", "default")
}

// TestContainerdRefused: a container that cannot move is refused with the reason, and keeps running.
func TestContainerdRefused(t *testing.T) {
	t.Run("interface", func(t *testing.T) { // as CNI makes it
		name := ctr(t, "default", nil, count)
		pid := in(t, "a", "sh", "-c", "ctr tasks ls | while read id pid rest; do test $id != "+name+
			" || echo $pid; done")
		in(t, "a", "sh", "-c", "ip link add made type veth peer name eth0 netns "+pid+
			"; nsenter --net=/proc/"+pid+
			"/ns/net sh -c 'ip address add 10.4.0.2/24 dev eth0; ip link set eth0 up'")
		err := tried(t, "a", "godwit", "migrate", "containerd:"+name, "b")
		if err == nil || !strings.Contains(err.Error(), "network interface eth0") {
			t.Errorf("%v, want a refusal of its interface", err)
		}
		ctrCounted(t, "a", name, ctrCounted(t, "a", name, 1))
	})
	for what, flags := range map[string][]string{"capability CAP_SYS_ADMIN": {"--cap-add", "CAP_SYS_ADMIN"},
		"host directory /tmp": {"--mount", "type=bind,src=/tmp,dst=/data,options=rbind:rw"}} {
		t.Run(strings.ToLower(strings.NewReplacer(" ", "-", "/", "", "_", "-").Replace(what)),
			func(t *testing.T) {
				name := ctr(t, "default", flags, count)
				err := tried(t, "a", "godwit", "migrate", "containerd:"+name, "b")
				if err == nil || !strings.Contains(err.Error(), what) {
					t.Errorf("%v, want a refusal of %s", err, what)
				}
				ctrCounted(t, "a", name, ctrCounted(t, "a", name, 1))
			})
	}
}
