//go:build hosts

package hosts

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab/hosts"
	labimage "github.com/godwit/godwit/internal/lab/image"
)

// hostSeen describes a machine.
type hostSeen struct {
	Name    string            `json:"name"`
	Debian  string            `json:"debian"`
	Kernel  string            `json:"kernel"`
	Engines map[string]string `json:"engines"` // their versions
}

// moveSeen describes a migration.
type moveSeen struct {
	Engine         string  `json:"engine"`
	Container      string  `json:"container"`
	Mode           string  `json:"mode"`
	From           string  `json:"from"`
	To             string  `json:"to"`
	Result         string  `json:"result"` // "moved", or why not
	ConnectionKept bool    `json:"connection_kept"`
	GapSeconds     float64 `json:"gap_seconds"` // the longest time between two answers
}

type results struct {
	Hosts   []hostSeen `json:"hosts"`
	Cases   []moveSeen `json:"cases"`
	Seconds float64    `json:"seconds"`
}

const moved = "moved"

// world is the two machines, and the results.
type world struct {
	a, b    *machine
	modes   []string
	results results
}

// TestHosts moves containers of every engine from one stock Debian machine to another and back.
func TestHosts(t *testing.T) {
	began := time.Now()
	w := up(t)
	for _, g := range chosen() {
		t.Run(g.engine, func(t *testing.T) { w.moves(t, g) })
	}
	t.Run("units", w.units)
	if os.Getenv("HOSTS_LONG") != "" {
		t.Run("agents", func(t *testing.T) { w.agentRestarts(t, guests()[0]) })
		t.Run("reboot", func(t *testing.T) { w.reboots(t, guests()[0]) })
	}
	w.results.Seconds = time.Since(began).Seconds()
	w.write(t)
}

// chosen returns the guests of the selected engines.
func chosen() []guest {
	only := strings.Fields(os.Getenv("HOSTS_ENGINES"))
	unwanted := func(g guest) bool { return len(only) > 0 && !slices.Contains(only, g.engine) }
	return slices.DeleteFunc(guests(), unwanted)
}

// up makes both machines nodes of one cluster.
func up(t *testing.T) *world {
	t.Helper()
	w := &world{modes: []string{"pre-copy", "post-copy"}}
	if os.Getenv("HOSTS_LONG") != "" {
		w.modes = []string{"cold", "pre-copy", "post-copy", "hybrid"}
	}
	pair, err := hosts.Up(t.Context(), hosts.Config{
		Repository: "../..", Directory: t.TempDir(),
		Suites: strings.Fields(cmp.Or(os.Getenv("HOSTS_SUITES"), "trixie trixie")),
		Fill:   func(directory string) error { return fill(t.Context(), directory) }, Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Down(); err != nil {
			t.Error(err)
		}
	})
	w.a, w.b = &machine{pair.A}, &machine{pair.B}
	for _, m := range w.machines() {
		if said, err := m.Run(t.Context(), "godwit doctor"); err != nil {
			t.Errorf("doctor on %s: %v", m.Name, err)
		} else {
			t.Logf("doctor on %s:\n%s", m.Name, said)
		}
		w.results.Hosts = append(w.results.Hosts, hostSeen{
			Name: m.Name, Debian: m.run(t, "cat /etc/debian_version"), Kernel: m.run(t, "uname -r"),
			Engines: map[string]string{
				"docker": m.run(t, "dockerd --version"), "podman": m.run(t, "podman --version"),
				"containerd": m.run(t, "containerd --version"), "lxc": m.run(t, "lxc-start --version"),
			},
		})
	}
	return w
}

func (w *world) machines() []*machine { return []*machine{w.a, w.b} }

// fill adds the image, as an archive and as a file system, and LXC's configuration to the files of both
// machines.
func fill(ctx context.Context, directory string) error {
	user, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	cache := filepath.Join(user, "godwit", "hosts", "images")
	archive, err := labimage.Build(ctx, "nginx", cache)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(archive)
	if err != nil {
		return err
	}
	root := filepath.Join(directory, "nginx")
	return errors.Join(
		os.WriteFile(filepath.Join(directory, "nginx.tar"), content, 0o644),
		os.WriteFile(filepath.Join(directory, "lxc.conf"), []byte(lxcConfig), 0o644),
		os.Mkdir(root, 0o755),
		labimage.Unpack(ctx, "nginx", cache, root),
	)
}

// machine is a machine of the tests.
type machine struct{ *hosts.Machine }

// run runs a script on the machine that must succeed.
func (m *machine) run(t *testing.T, script string) string {
	t.Helper()
	said, err := m.Run(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// until waits until a command of the machine succeeds. The command has no single quotes.
func (m *machine) until(t *testing.T, command string) {
	t.Helper()
	m.run(t, "timeout 300 sh -c 'until "+command+"; do sleep 0.2; done'")
}

// moves moves a container there and back in each mode, while a client sends requests on one connection.
func (w *world) moves(t *testing.T, g guest) {
	for _, m := range w.machines() {
		m.run(t, g.setup)
	}
	for _, mode := range w.modes {
		t.Run(mode, func(t *testing.T) {
			w.a.run(t, g.start)
			t.Cleanup(func() {
				for _, m := range w.machines() {
					_, _ = m.Run(context.Background(), g.remove) // it is on one of them
				}
			})
			c := startClient(t, g.address(t, w.a))
			users := g.users(t, w.a)
			there := w.move(t, g, mode, w.a, w.b)
			if there && g.users(t, w.b) != users {
				t.Errorf("its processes are of the users %q on b; they were of %q", g.users(t, w.b), users)
			}
			if there {
				w.move(t, g, mode, w.b, w.a)
			}
			c.stop()
			if c.err != nil {
				t.Errorf("the client's connection: %v", c.err)
			}
			for i := len(w.results.Cases) - 1; i >= 0 && w.results.Cases[i].Mode == mode &&
				w.results.Cases[i].Engine == g.engine; i-- {
				w.results.Cases[i].ConnectionKept, w.results.Cases[i].GapSeconds = c.err == nil,
					c.gap.Seconds()
			}
		})
	}
}

func (w *world) move(t *testing.T, g guest, mode string, from, to *machine) bool {
	t.Helper()
	seen := moveSeen{Engine: g.engine, Container: "nginx", Mode: mode, From: from.Name, To: to.Name,
		Result: moved}
	if said, err := from.Run(t.Context(), "godwit migrate --mode "+mode+" "+g.ref+" "+to.Name); err != nil {
		seen.Result = said
		t.Errorf("%s in mode %s from %s to %s: %v", g.ref, mode, from.Name, to.Name, err)
	}
	t.Logf("%s in mode %s from %s to %s: %s", g.ref, mode, from.Name, to.Name, seen.Result)
	w.results.Cases = append(w.results.Cases, seen)
	return seen.Result == moved
}

// units reloads systemd and restarts an agent that has received containers: no process is left over, and a
// container keeps its limits.
func (w *world) units(t *testing.T) {
	for _, g := range chosen() {
		if g.engine == "docker" || g.engine == "containerd" { // their daemons start the processes
			continue
		}
		start, limits := g.start, "true"
		if g.engine == "embedded" {
			start = strings.Replace(start, "run ", "run --memory 200m --cpus 0.5 --pids 50 ", 1)
			limits = "cd /sys/fs/cgroup/godwit/*/ && grep -H . memory.max cpu.max pids.max"
		}
		w.a.run(t, start)
		t.Cleanup(func() { w.removed(g) })
		w.a.run(t, "godwit migrate --mode cold "+g.ref+" b")
		before := w.b.run(t, limits)
		if g.engine == "embedded" && !strings.Contains(before, "pids.max:50") {
			t.Errorf("the container has the limits\n%s", before)
		}
		w.b.run(t, "systemctl daemon-reload && systemctl restart godwit-agent && godwit inspect "+g.ref)
		if after := w.b.run(t, limits); after != before {
			t.Errorf("the container had the limits\n%s\nand has\n%s", before, after)
		}
		watching := w.b.run(t, "systemctl status godwit-containers")
		if g.engine == "embedded" && !strings.Contains(watching, "container-monitor") {
			t.Errorf("the monitor is not in the unit:\n%s", watching)
		}
		w.removed(g)
	}
	if said := w.b.run(t,
		"journalctl --quiet --boot --unit 'godwit-*' --grep left-over || true"); said != "" {
		t.Errorf("systemd says:\n%s", said)
	}
}

// agentRestarts restarts both agents during a migration: the migration ends, and the client loses nothing.
func (w *world) agentRestarts(t *testing.T, g guest) {
	w.a.run(t, g.start)
	t.Cleanup(func() { w.removed(g) })
	c := startClient(t, g.address(t, w.a))
	for _, restarted := range w.machines() {
		began := make(chan error, 1)
		go func() {
			_, err := w.a.Run(t.Context(), "godwit migrate --mode pre-copy "+g.ref+" b")
			began <- err
		}()
		w.a.until(t, `godwit migration ls --json | grep -q "\"result\": *\"running\""`)
		restarted.run(t, "systemctl restart godwit-agent")
		t.Logf("the agent of %s was restarted: %v", restarted.Name, <-began)
		for _, m := range w.machines() {
			m.until(t,
				`godwit migration ls --json >/tmp/ls && ! grep -q "\"result\": *\"\(running\|in-doubt\)\"" /tmp/ls`)
		}
		if w.b.run(t, "godwit ps | grep -c ' running ' || true") != "0" {
			w.b.run(t, "godwit migrate "+g.ref+" a")
		}
	}
	c.stop()
	if c.err != nil {
		t.Errorf("the client's connection: %v", c.err)
	}
}

// reboots moves a container away from a machine, which is switched off and on: the container keeps running,
// and comes back.
func (w *world) reboots(t *testing.T, g guest) {
	w.a.run(t, g.start)
	w.a.run(t, "godwit migrate "+g.ref+" b")
	w.a.Kill()
	if err := hosts.Boot(t.Context(), w.a.Machine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.removed(g) })
	w.b.until(t, fmt.Sprintf("godwit migrate %s a", g.ref))
	c := startClient(t, g.address(t, w.a))
	c.stop()
	if c.err != nil {
		t.Errorf("after the reboot: %v", c.err)
	}
}

func (w *world) removed(g guest) {
	for _, m := range w.machines() {
		_, _ = m.Run(context.Background(), g.remove) // it is on one of them
	}
}

func (w *world) write(t *testing.T) {
	t.Helper()
	path := os.Getenv("HOSTS_JSON")
	if path == "" {
		return
	}
	document, err := json.MarshalIndent(w.results, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(document, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
