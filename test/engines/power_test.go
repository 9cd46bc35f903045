package engines

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/agent"
)

// TestDockerPowerLost: a container that Docker starts at boot runs again at exactly one node after a power
// failure of its node, during its departure or right after its arrival. At the target it does so when the
// source has given its copy away.
func TestDockerPowerLost(t *testing.T) {
	name := docker(t, []string{"--restart", "always"}, count)
	for _, c := range []struct {
		fault agent.Fault
		node  string
	}{
		{agent.Fault{Side: "source", Step: "dump", When: "after"}, "a"},
		{agent.Fault{Side: "source", Step: "destroy", When: "after"}, "b"},
	} {
		if testing.Short() && c.node != "a" {
			continue
		}
		point := fault(t, "a", c.fault, agent.FaultPause)
		done := begin(name, "cold")
		point.reached(t)
		losesPower(t, c.node)
		if c.node != "a" {
			if state := inspected(t, "b", name, ".State.Status"); state != "exited" {
				t.Errorf("before the source has said that its copy is gone it is %s", state)
			}
			point.goOn(t)
		}
		<-done
		eventually(t, "it runs at "+c.node+" only", func() bool {
			running := func(node string) string {
				return in(t, node, "docker", "ps", "--all", "--format", "{{.State}}", "--filter",
					"name=^"+name+"$")
			}
			return running(c.node) == "running" &&
				running(map[string]string{"a": "b", "b": "a"}[c.node]) == ""
		})
		if policy := inspected(t, c.node, name, ".HostConfig.RestartPolicy.Name"); policy != "always" {
			t.Errorf("its policy is %s", policy)
		}
	}
}

// losesPower simulates a power failure of a node and its return, as another boot, with all engines.
func losesPower(t *testing.T, node string) {
	t.Helper()
	if err := world.lab.Reboot(node); err != nil {
		t.Fatal(err)
	}
	boot := filepath.Join(world.directory, "boot-"+node)
	if err := os.WriteFile(boot, fmt.Appendf(nil, "%s\n", rand.Text()), 0o644); err != nil {
		t.Fatal(err)
	}
	in(t, node, "mount", "--bind", boot, "/proc/sys/kernel/random/boot_id")
	for _, start := range []func(context.Context, string) error{
		func(ctx context.Context, node string) error { return world.lab.Engines().StartDocker(ctx, node) },
		world.lab.Engines().PreparePodman, world.lab.Engines().StartContainerd,
		func(ctx context.Context, node string) error { return world.lab.StartAgent(ctx, node, "--faults") },
	} {
		if err := start(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDockerEndsOnTheWay: a container with policy always that ends during its departure runs again, unless
// a user has ended it.
func TestDockerEndsOnTheWay(t *testing.T) {
	name := docker(t, []string{"--restart", "always"}, count)
	for _, c := range []struct {
		end   []string
		state string
	}{
		{[]string{"kill", "-KILL", inspected(t, "a", name, ".State.Pid")}, "running"},
		{[]string{"docker", "kill", name}, "exited"},
	} {
		stop := fault(t, "a", agent.Fault{Side: "source", Step: "prepare", When: "after"}, agent.FaultPause)
		done := begin(name, "cold")
		stop.reached(t)
		in(t, "a", c.end...)
		eventually(t, "it has ended",
			func() bool { return inspected(t, "a", name, ".State.Running") == "false" })
		stop.goOn(t)
		if err := <-done; err == nil {
			t.Error("it moved")
		}
		eventually(t, "its copy is gone", func() bool {
			return in(t, "b", "docker", "ps", "--all", "--quiet", "--filter", "name=^"+name+"$") == ""
		})
		eventually(t, "it is "+c.state,
			func() bool { return inspected(t, "a", name, ".State.Status") == c.state })
		if policy := inspected(t, "a", name, ".HostConfig.RestartPolicy.Name"); policy != "always" {
			t.Errorf("its policy is %s", policy)
		}
	}
}
