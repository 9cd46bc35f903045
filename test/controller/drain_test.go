package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/migration"
)

// patience is how long a condition may take to come true on a machine that is busy with other things.
const patience = 2 * time.Minute

const (
	containers = 4
	redisRate  = 50 // requests per second of each client
	data       = "/var/lib/godwit/controller"
	userToken  = "/var/lib/godwit/user-token"
)

// must runs a program in a node.
func must(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := world.lab.Exec(t.Context(), node, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func eventually(t *testing.T, what string, is func() error) {
	t.Helper()
	var err error
	if !labtest.Within(patience, func() bool {
		err = is()
		return err == nil
	}) {
		t.Fatalf("waited for %s: %v", what, err)
	}
}

// run starts the controller on node a; its end kills it.
func run(t *testing.T) (end func()) {
	t.Helper()
	cmd, err := world.lab.Command(context.Background(), "a", world.program, "run", "--data", data,
		"--out-per-node", "1")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	end = func() {
		_ = cmd.Process.Kill() // it may have been killed before
		<-ended
	}
	t.Cleanup(func() {
		end()
		if t.Failed() {
			out, _ := os.ReadFile(log.Name())
			t.Logf("the controller wrote:\n%s", out)
		}
	})
	eventually(t, "the controller to answer", func() error {
		_, err := world.lab.Exec(t.Context(), "a", world.program, "token", "user", "trial", "--ttl", "1s")
		return err
	})
	return end
}

// controlled runs a command of godwit that the controller answers.
func controlled(t *testing.T, args ...string) string {
	t.Helper()
	out, err := as(t, userToken, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// as runs a command of godwit that the controller answers, with another token.
func as(t *testing.T, token string, args ...string) (string, error) {
	t.Helper()
	return world.lab.Exec(t.Context(), "a", append([]string{"godwit", "--controller", "127.0.0.1",
		"--controller-token", token}, args...)...)
}

// write writes a secret in a node.
func write(t *testing.T, node, path, text string) {
	t.Helper()
	root, err := world.lab.Root(node)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, path), []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// join connects all nodes, and gives the user a token.
func join(t *testing.T) {
	t.Helper()
	address, err := world.lab.Address("a")
	if err != nil {
		t.Fatal(err)
	}
	write(t, "a", userToken, must(t, "a", world.program, "token", "user", "anna"))
	for _, node := range []string{"a", "b", "c"} {
		const path = "/var/lib/godwit/node-token"
		write(t, node, path, must(t, "a", world.program, "token", "node", "--node", node))
		must(t, node, "godwit", "node", "connect", address.String(), "--token-file", path)
	}
	eventually(t, "the nodes to connect", func() error {
		var nodes []*api.ClusterNode
		if err := json.Unmarshal([]byte(controlled(t, "nodes", "--json")), &nodes); err != nil {
			return err
		}
		for _, one := range nodes {
			if !one.Connected {
				return fmt.Errorf("%s is not connected", one.Name)
			}
		}
		if len(nodes) != 3 {
			return fmt.Errorf("%d nodes", len(nodes))
		}
		return nil
	})
}

// startRedis starts a Redis on node b, with a client that keeps one connection and checks each answer.
func startRedis(t *testing.T, name string) *workload.RedisCounter {
	t.Helper()
	must(t, "b", "godwit", "run", "-d", "--name", name, "redis")
	there := list(t, "b")
	address := there[name].Definition.Network.Address.String() + ":6379"
	var connection net.Conn
	eventually(t, name+" to answer", func() (err error) {
		connection, err = world.lab.Dial(t.Context(), client, "tcp", address)
		return err
	})
	counter := workload.NewRedisCounter(connection)
	if err := counter.Fill(1 << 20); err != nil {
		t.Fatal(err)
	}
	ctx, hang := context.WithCancel(context.Background())
	t.Cleanup(hang)
	counter.Start(ctx, redisRate)
	return counter
}

// list returns the running containers of a node, by name, as its agent says.
func list(t *testing.T, node string) map[string]engine.Container {
	t.Helper()
	var all []engine.Container
	if err := json.Unmarshal([]byte(must(t, node, "godwit", "ps", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	running := map[string]engine.Container{}
	for _, one := range all {
		if one.State == engine.Running {
			running[one.Definition.Name] = one
		}
	}
	return running
}

// TestDrain drains a node, and kills the controller while the first container moves. That move ends without
// it. The next controller drains the rest. No container moves twice, and no client sees an error.
func TestDrain(t *testing.T) {
	kill := run(t)
	join(t)
	clients := map[string]*workload.RedisCounter{}
	for i := range containers {
		name := fmt.Sprint("redis", i)
		clients[name] = startRedis(t, name)
	}
	root, err := world.lab.Root("b")
	if err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(root, "run/godwit")
	pause := agent.Fault{Side: "source", Step: "prepare", When: "before"}
	if err := pause.Set(directory, agent.FaultPause); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the controller to know the containers", func() error {
		if text := controlled(t, "ps", "-A"); strings.Count(text, "running") != containers {
			return errors.New(text)
		}
		return nil
	})
	controlled(t, "node", "drain", "b", "--bring-back")
	eventually(t, "the first migration to be under way", func() error {
		_, err := os.Stat(pause.Reached(directory))
		return err
	})
	if text := controlled(t, "migration", "ls", "-A"); strings.Count(text, "which leave b") != containers-1 {
		t.Errorf("what waits does not say for what:\n%s", text)
	}
	kill()
	if err := pause.Clear(directory); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first migration to end without the controller", func() error {
		if left := len(list(t, "b")); left != containers-1 {
			return fmt.Errorf("%d containers at b", left)
		}
		return nil
	})
	run(t)
	controlled(t, "node", "drain", "b", "--bring-back", "--wait")
	checkPlaces(t, clients)
	checkMigrations(t)
	for name, one := range clients {
		if seen := one.Seen(); seen.Errors+seen.Lost+seen.Doubled > 0 || !seen.SameConnection {
			t.Errorf("the client of %s saw %+v", name, seen)
		}
	}
	controlled(t, "node", "restore", "b")
	eventually(t, "the containers to return", func() error {
		if there := len(list(t, "b")); there != containers {
			return fmt.Errorf("%d containers at b", there)
		}
		return nil
	})
	for name, one := range clients {
		before := one.Answers()
		eventually(t, name+" to answer", func() error {
			if one.Answers() == before {
				return errors.New("no answer")
			}
			return nil
		})
		if seen := one.Seen(); seen.Errors+seen.Lost+seen.Doubled > 0 || !seen.SameConnection {
			t.Errorf("the client of %s saw %+v", name, seen)
		}
	}
}

// checkPlaces checks that each container runs at one node, which is not b.
func checkPlaces(t *testing.T, clients map[string]*workload.RedisCounter) {
	t.Helper()
	at := map[string][]string{}
	for _, node := range []string{"a", "b", "c"} {
		for name := range list(t, node) {
			at[name] = append(at[name], node)
		}
	}
	for name := range clients {
		if len(at[name]) != 1 || at[name][0] == "b" {
			t.Errorf("%s runs at %v", name, at[name])
		}
	}
}

// checkMigrations checks that each container moved once: by what the controller and the source say.
func checkMigrations(t *testing.T) {
	t.Helper()
	var intents []*api.Intent
	if err := json.Unmarshal([]byte(controlled(t, "migration", "ls", "-A", "--json")), &intents); err != nil {
		t.Fatal(err)
	}
	var reports []migration.Report
	if err := json.Unmarshal([]byte(must(t, "b", "godwit", "migration", "ls", "--json")),
		&reports); err != nil {
		t.Fatal(err)
	}
	if len(intents) != containers || len(reports) != containers {
		t.Errorf("%d intents and %d migrations for %d containers", len(intents), len(reports), containers)
	}
	for _, one := range intents {
		if one.State != "moved" {
			t.Errorf("intent %s of %s is %s: %s", one.Id, one.Name, one.State, one.Error)
		}
	}
}

// TestCancel cancels a migration that is under way, and one that waits for it: both containers stay, and
// their clients see nothing. A user who may only look may not do that, and the audit log says who did.
func TestCancel(t *testing.T) {
	run(t)
	join(t)
	const viewer, admin = "/var/lib/godwit/viewer-token", "/var/lib/godwit/admin-token"
	write(t, "a", viewer, must(t, "a", world.program, "token", "user", "ben", "--role", "viewer"))
	write(t, "a", admin, must(t, "a", world.program, "token", "user", "root", "--role", "admin"))
	clients := map[string]*workload.RedisCounter{}
	for _, name := range []string{"stays1", "stays2"} {
		clients[name] = startRedis(t, name)
	}
	root, err := world.lab.Root("b")
	if err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(root, "run/godwit")
	pause := agent.Fault{Side: "source", Step: "prepare", When: "before"}
	if err := pause.Set(directory, agent.FaultPause); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the controller to know the containers", func() error {
		text := controlled(t, "ps", "-A")
		if !strings.Contains(text, "stays1") || !strings.Contains(text, "stays2") {
			return errors.New(text)
		}
		return nil
	})
	first := strings.TrimSpace(controlled(t, "migrate", "stays1", "c", "--detach"))
	eventually(t, "the migration to be under way", func() error {
		_, err := os.Stat(pause.Reached(directory))
		return err
	})
	second := strings.TrimSpace(controlled(t, "migrate", "stays2", "c", "--detach"))
	if out, err := as(t, viewer, "migration", "cancel", second); err == nil ||
		!strings.Contains(out+err.Error(), "needs the role operator") {
		t.Errorf("a viewer cancels a migration: %s, %v", out, err)
	}
	if out := controlled(t, "migration", "cancel", second); !strings.Contains(out, "is cancelled") {
		t.Errorf("cancel of what waits: %s", out)
	}
	if out := controlled(t, "migration", "cancel", first); !strings.Contains(out, "Asked b to cancel") {
		t.Errorf("cancel of what is under way: %s", out)
	}
	if err := pause.Clear(directory); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both to be cancelled", func() error {
		var intents []*api.Intent
		out := controlled(t, "migration", "ls", "-A", "--json")
		if err := json.Unmarshal([]byte(out), &intents); err != nil {
			return err
		}
		for _, one := range intents {
			if (one.Id == first || one.Id == second) && one.State != "cancelled" {
				return fmt.Errorf("%s is %s", one.Name, one.State)
			}
		}
		return nil
	})
	here := list(t, "b")
	for name, one := range clients {
		before := one.Answers()
		eventually(t, name+" to answer", func() error {
			if one.Answers() == before {
				return errors.New("no answer")
			}
			return nil
		})
		seen := one.Seen()
		if here[name].State != engine.Running || seen.Errors+seen.Lost+seen.Doubled > 0 ||
			!seen.SameConnection {
			t.Errorf("%s is %q at b, and its client saw %+v", name, here[name].State, seen)
		}
	}
	log, err := as(t, admin, "audit")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"user anna ", "CancelIntent " + first + ": ok", "Move stays2 to c: ok",
		"CancelIntent " + second + ": PermissionDenied", "node b "} {
		if !strings.Contains(log, want) {
			t.Errorf("the audit log lacks %q:\n%s", want, log)
		}
	}
}
