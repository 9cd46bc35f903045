//go:build hosts

package hosts

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	labimage "github.com/godwit/godwit/internal/lab/image"
)

// hostSeen is what a machine is.
type hostSeen struct {
	Name    string            `json:"name"`
	Debian  string            `json:"debian"`
	Kernel  string            `json:"kernel"`
	Engines map[string]string `json:"engines"` // their versions
}

// moveSeen is a migration.
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

// world is the two machines, and what was seen.
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

// chosen are the guests of the engines that are to be tried.
func chosen() []guest {
	only := strings.Fields(os.Getenv("HOSTS_ENGINES"))
	unwanted := func(g guest) bool { return len(only) > 0 && !slices.Contains(only, g.engine) }
	return slices.DeleteFunc(guests(), unwanted)
}

// up makes both machines nodes of one cluster.
func up(t *testing.T) *world {
	t.Helper()
	directory := t.TempDir()
	makeNetwork(t)
	makePayload(t, directory)
	suites := strings.Fields(cmp.Or(os.Getenv("HOSTS_SUITES"), "trixie trixie"))
	if len(suites) != 2 {
		t.Fatalf("HOSTS_SUITES names %d suites: name one for each of the two machines", len(suites))
	}
	w := &world{modes: []string{"pre-copy", "post-copy"}}
	if os.Getenv("HOSTS_LONG") != "" {
		w.modes = []string{"cold", "pre-copy", "post-copy", "hybrid"}
	}
	w.a, w.b = newMachine(t, directory, suites[0], 1), newMachine(t, directory, suites[1], 2)
	boot(t, w.a, w.b)
	for _, m := range []*machine{w.a, w.b} {
		m.run(t, "mount -o ro /dev/vdb /mnt && cp -a /mnt/install/. / && systemctl daemon-reload")
	}
	start := "systemctl enable --now --quiet godwit-agent"
	w.a.run(t, "godwit node init --name a --address "+w.a.address()+" && "+start)
	token := w.a.run(t, "godwit node token 2>/dev/null")
	w.b.run(t, "echo '"+token+"' | godwit node join "+w.a.address()+" --token-file - --name b --address "+
		w.b.address()+" && "+start)
	for _, m := range []*machine{w.a, w.b} {
		if said, err := m.try(t, "godwit doctor"); err != nil {
			t.Errorf("doctor on %s: %v", m.name, err)
		} else {
			t.Logf("doctor on %s:\n%s", m.name, said)
		}
		w.results.Hosts = append(w.results.Hosts, hostSeen{
			Name: m.name, Debian: m.run(t, "cat /etc/debian_version"), Kernel: m.run(t, "uname -r"),
			Engines: map[string]string{
				"docker": m.run(t, "dockerd --version"), "podman": m.run(t, "podman --version"),
				"containerd": m.run(t, "containerd --version"), "lxc": m.run(t, "lxc-start --version"),
			},
		})
	}
	for _, pool := range []string{"10.57.0.0/16", "10.60.0.0/16"} { // by way of a, as a router would be told
		host(t, "ip", "-n", namespace, "route", "add", pool, "via", w.a.address())
	}
	return w
}

// makePayload makes the disk that has Godwit, as `make install` installs it, and the image.
func makePayload(t *testing.T, directory string) {
	t.Helper()
	files := filepath.Join(directory, "payload")
	host(t, "make", "-C", "../..", "--no-print-directory", "install", "PREFIX=/usr",
		"DESTDIR="+filepath.Join(files, "install"))
	cache := filepath.Join(filepath.Dir(directory), "images")
	if home, err := os.UserCacheDir(); err == nil {
		cache = filepath.Join(home, "godwit", "hosts", "images")
	}
	archive, err := labimage.Build(t.Context(), "nginx", cache)
	if err != nil {
		t.Fatal(err)
	}
	host(t, "cp", archive, filepath.Join(files, "nginx.tar"))
	root := filepath.Join(files, "nginx")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := labimage.Unpack(t.Context(), "nginx", cache, root); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(files, "lxc.conf"), []byte(lxcConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(directory, "payload.img")
	host(t, "truncate", "--size", "400M", disk)
	host(t, "mkfs.ext4", "-q", "-F", "-d", files, disk)
}

// moves moves a container there and back in each mode, while a client asks it on one connection.
func (w *world) moves(t *testing.T, g guest) {
	for _, m := range []*machine{w.a, w.b} {
		m.run(t, g.setup)
	}
	for _, mode := range w.modes {
		t.Run(mode, func(t *testing.T) {
			w.a.run(t, g.start)
			t.Cleanup(func() {
				for _, m := range []*machine{w.a, w.b} {
					_, _ = m.ssh(context.Background(), g.remove).CombinedOutput() // it is on one of them
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
	seen := moveSeen{Engine: g.engine, Container: "nginx", Mode: mode, From: from.name, To: to.name,
		Result: moved}
	if said, err := from.try(t, "godwit migrate --mode "+mode+" "+g.ref+" "+to.name); err != nil {
		seen.Result = said
		t.Errorf("%s in mode %s from %s to %s: %v", g.ref, mode, from.name, to.name, err)
	}
	t.Logf("%s in mode %s from %s to %s: %s", g.ref, mode, from.name, to.name, seen.Result)
	w.results.Cases = append(w.results.Cases, seen)
	return seen.Result == moved
}

// units reloads systemd and restarts an agent to which containers have come: no process is left over, and a
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

// agentRestarts restarts both agents under way: the migration ends, and the client loses nothing.
func (w *world) agentRestarts(t *testing.T, g guest) {
	w.a.run(t, g.start)
	t.Cleanup(func() { w.removed(g) })
	c := startClient(t, g.address(t, w.a))
	for _, restarted := range []*machine{w.a, w.b} {
		began := make(chan error, 1)
		go func() {
			_, err := w.a.ssh(t.Context(), "godwit migrate --mode pre-copy "+g.ref+" b").CombinedOutput()
			began <- err
		}()
		w.a.until(t, `godwit migration ls --json | grep -q "\"result\": *\"running\""`)
		restarted.run(t, "systemctl restart godwit-agent")
		t.Logf("the agent of %s was restarted: %v", restarted.name, <-began)
		for _, m := range []*machine{w.a, w.b} {
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

// reboots moves a container away from a machine, which is switched off and on: the container runs
// on, and comes back.
func (w *world) reboots(t *testing.T, g guest) {
	w.a.run(t, g.start)
	w.a.run(t, "godwit migrate "+g.ref+" b")
	w.a.kill()
	boot(t, w.a)
	t.Cleanup(func() { w.removed(g) }) // before the machine that was booted here is switched off
	w.b.until(t, fmt.Sprintf("godwit migrate %s a", g.ref))
	c := startClient(t, g.address(t, w.a))
	c.stop()
	if c.err != nil {
		t.Errorf("after the reboot: %v", c.err)
	}
}

func (w *world) removed(g guest) {
	for _, m := range []*machine{w.a, w.b} {
		_, _ = m.ssh(context.Background(), g.remove).CombinedOutput() // it is on one of them
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
