package engines

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/migration"
)

// hangs stops the Docker of a node until the test is over, or goesOn.
func hangs(t *testing.T, node string) (goesOn func()) {
	t.Helper()
	pid := in(t, node, "cat", "/run/docker.pid")
	goesOn = func() { _, _ = world.lab.Exec(context.Background(), node, "kill", "-CONT", pid) }
	t.Cleanup(goesOn)
	in(t, node, "kill", "-STOP", pid)
	return goesOn
}

// late expects the error of an engine that does not answer.
func late(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "Docker did not answer within") {
		t.Errorf("%s, while Docker hangs: %v", what, err)
	}
}

// TestDockerHangs: operations that need a hung Docker fail with the reason. The rest continues: lists,
// greetings of nodes, the other engines, and a container of that Docker that was frozen and stays.
func TestDockerHangs(t *testing.T) {
	const volume = "hangs-data"
	t.Cleanup(func() { _, _ = world.lab.Exec(context.Background(), "a", "docker", "volume", "rm", volume) })
	name := docker(t, []string{"--volume", volume + ":/data"},
		`i=0; while :; do i=$((i+1)); echo tick $i; echo $i >/data/n; sleep 0.05; done`)
	path := in(t, "a", "docker", "volume", "inspect", "--format", "{{.Mountpoint}}", volume) + "/n"
	const other = "beside-hung"
	embedded{}.run(t, "a", other, nil, count)
	t.Cleanup(func() { _, _ = world.lab.Exec(context.Background(), "a", "godwit", "rm", "--force", other) })
	at := func() int {
		n, _ := strconv.Atoi(in(t, "a", "cat", path)) // empty while it is being written
		return n
	}

	frozen := fault(t, "a", agent.Fault{Side: "source", Step: "dump", When: "after"}, agent.FaultPause)
	done := begin(name, "cold")
	frozen.reached(t)
	goesOn := hangs(t, "a")
	in(t, "a", "godwit", "migration", "cancel", migrationOf(t, name))
	stopped := at()
	frozen.goOn(t)
	eventually(t, "it runs on here, and its Docker hangs", func() bool { return at() > stopped })

	late(t, "inspect", tried(t, "a", "godwit", "inspect", "docker:"+name))
	if list := in(t, "a", "godwit", "ps"); !strings.Contains(list, other) {
		t.Errorf("the list lacks what other engines have: %s", list)
	}
	if err := tried(t, "a", "godwit", "inspect", other); err != nil {
		t.Errorf("another engine's container: %v", err)
	}
	if !reaches(t, "b", "a") {
		t.Error("the node is not reached")
	}

	if err := world.lab.KillAgent(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	// As if the agent had been killed while it made a container of its own engine, too.
	const releases = "/var/lib/godwit/releases.json"
	in(t, "a", "sh", "-c", `echo '[{"container":"`+strings.Repeat("0", 64)+`"}]' >`+releases)
	// StartAgent returns when the agent answers
	if err := world.lab.StartAgent(t.Context(), "a", "--faults"); err != nil {
		t.Fatal(err)
	}
	in(t, "a", "test", "!", "-e", releases) // no other engine was asked
	in(t, "a", "godwit", "inspect", other)
	eventually(t, "the node is reached", func() bool { return reaches(t, "b", "a") })

	goesOn()
	if err := <-done; err == nil {
		t.Error("it moved")
	}
	eventually(t, "it is Docker's again",
		func() bool { return inspected(t, "a", name, ".State.Status") == "running" })
	noRecords(t, "a", dockerEngine)
	migrate(t, name, "a", "b", "cold")
}

// TestDockerHangsWhileMemoryFollows: remote pages are sent while the source's Docker hangs, even if the
// agent there has been killed. Only the removal of the copy waits for Docker.
func TestDockerHangsWhileMemoryFollows(t *testing.T) {
	name := docker(t, nil, count)
	push := fault(t, "a", agent.Fault{Side: "source", Step: "drain", When: "before"}, agent.FaultPause)
	done := begin(name, "post-copy")
	push.reached(t)
	id := migrationOf(t, name)
	goesOn := hangs(t, "a")
	if err := world.lab.KillAgent(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	<-done // callers that wait for the migration lose the agent
	if err := world.lab.StartAgent(t.Context(), "a", "--faults"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all pages are at b", func() bool {
		var r migration.Report
		err := json.Unmarshal([]byte(in(t, "b", "godwit", "migration", "show", id, "--json")), &r)
		return err == nil && r.Push != nil && r.Push.RemotePages > 0 && r.Push.LeftPages == 0
	})
	goesOn()
	counted(t, "b", name, counted(t, "b", name, 1))
	nothing(t, "a", name)
}

// migrationOf returns the id of a container's migration.
func migrationOf(t *testing.T, name string) string {
	t.Helper()
	var all []struct{ Migration, Container string } // the latest first
	if err := json.Unmarshal([]byte(in(t, "a", "godwit", "migration", "ls", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.Container == name {
			return one.Migration
		}
	}
	t.Fatalf("no migration of %s among %+v", name, all)
	return ""
}

// reaches reports whether a node reached another one at the last greeting.
func reaches(t *testing.T, from, to string) bool {
	t.Helper()
	for line := range strings.Lines(in(t, from, "godwit", "nodes", "--measure=false")) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == to {
			return strings.Contains(line, "reachable") && !strings.Contains(line, "unreachable")
		}
	}
	return false
}
