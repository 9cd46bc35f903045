package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// snapshot lists everything that a migration could leave on a node: processes, mounts, cgroups, files,
// devices, routes, rules, elements of the packet filter's sets. Each is a line.
type snapshot map[string]bool

// learnOrder moves the container back and forth and records the state of each node. Every migration must
// lead to the same state, however it ended.
func (w *world) learnOrder(t *testing.T) {
	t.Helper()
	for range len(nodes) + 1 { // The first one also leaves the image.
		w.meet(t)
		from := w.at
		id := w.begin(t, from, other(from))
		w.settle(t, id)
		if w.at == from {
			r, _ := w.report(t, from, id)
			t.Fatalf("a migration without a fault did not move the container: %+v", r)
		}
		w.quiet(t)
	}
}

// quiet waits until nothing changes any more after a migration, and records the state of each node.
func (w *world) quiet(t *testing.T) {
	t.Helper()
	for _, node := range nodes {
		last := w.look(t, node)
		same := 0
		eventually(t, node+" to come to rest", func() error {
			now := w.look(t, node)
			if diff := last.compare(now); diff != nil {
				last, same = now, 0
				return diff
			}
			if same++; same < 8 {
				return errors.New("not looked at for long enough")
			}
			return nil
		})
		// seen nine times; a later look may catch a short-lived program of an engine
		w.order[node+w.at] = last
	}
}

// inOrder checks that both nodes are as they were after a successful migration.
func (w *world) inOrder(t *testing.T) {
	t.Helper()
	for _, node := range nodes {
		eventually(t, node+" to be in order with the container on "+w.at, func() error {
			return w.order[node+w.at].compare(w.look(t, node))
		})
	}
}

// compare returns the additional and the missing lines of the other snapshot.
func (s snapshot) compare(now snapshot) error {
	var diff []string
	for line := range now {
		if !s[line] {
			diff = append(diff, "left over: "+line)
		}
	}
	for line := range s {
		if !now[line] {
			diff = append(diff, "missing: "+line)
		}
	}
	if diff == nil {
		return nil
	}
	slices.Sort(diff)
	return errors.New(strings.Join(diff, "\n"))
}

func (s snapshot) add(format string, args ...any) { s[fmt.Sprintf(format, args...)] = true }

// look takes a snapshot of a node.
func (w *world) look(t *testing.T, node string) (s snapshot) {
	t.Helper()
	pid, err := w.lab.PID(node)
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root", pid)
	eventually(t, "a look at "+node, func() error { // the kernel's lists may change during a read
		s = snapshot{}
		return errors.Join(s.processes(root), s.mounts(pid), s.cgroups(w.lab.Name(), node),
			s.files(root, "run/godwit"), s.files(root, "var/lib/godwit"), w.lab.InNetwork(node, s.network))
	})
	return w.alike(s)
}

// processes lists the processes in the node's PID namespace, by their arguments.
func (s snapshot) processes(root string) error {
	entries, err := os.ReadDir(root + "/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.Trim(entry.Name(), "0123456789") != "" {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(root, "proc", entry.Name(), "cmdline"))
		if err != nil {
			continue // it has just ended
		}
		args := strings.TrimRight(strings.ReplaceAll(string(cmdline), "\x00", " "), " ")
		if args == "" {
			comm, _ := os.ReadFile(filepath.Join(root, "proc", entry.Name(), "comm"))
			args = "(zombie) " + strings.TrimSpace(string(comm))
		}
		s.add("process %s", args)
	}
	return nil
}

func (s snapshot) mounts(pid int) error {
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if i := slices.Index(fields, "-"); i > 5 && len(fields) > i+1 {
			s.add("mount %s %s", fields[i+1], fields[4])
		}
	}
	return nil
}

// cgroups lists a node's cgroups in every hierarchy.
func (s snapshot) cgroups(lab, node string) error {
	tops, err := filepath.Glob("/sys/fs/cgroup/*/godwit-lab/" + lab + "/" + node)
	if err != nil {
		return err
	}
	for _, top := range append(tops, "/sys/fs/cgroup/godwit-lab/"+lab+"/"+node) {
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			// lxc-attach leaves it in a container
			if err == nil && entry.IsDir() && entry.Name() != ".lxc" {
				s.add("cgroup %s", path)
			}
			return nil // gone meanwhile
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// changing matches files that may differ: journals and reports, leases, logs of CRIU, leftovers of the
// first arrival, faults, and the contents of containers and images.
var changing = regexp.MustCompile(
	`^run/godwit/(faults|gate-bin)|^var/lib/godwit/addresses.json$|/criu/[a-z]+\.log$|^var/lib/godwit/migrations/.|/(upper|work|private|rootfs|shm)/.|/(layers|images)/sha256/[0-9a-f]+/.`)

// listedNetworks matches what Podman makes when the agent first lists its networks. On a busy machine that
// takes longer than learnOrder.
var listedNetworks = regexp.MustCompile(
	`^var/lib/godwit/settings/etc/containers/networks(/netavark\.lock)?$`)

func (s snapshot) files(root, dir string) error {
	return filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return nil // gone meanwhile
		case changing.MatchString(name):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case listedNetworks.MatchString(name):
		default:
			s.add("file %s %s", entry.Type(), name)
		}
		return nil
	})
}

// network lists the state of the calling thread's network namespace.
func (s snapshot) network() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		s.add("device %s %s", link.Type(), link.Attrs().Name)
	}
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, all, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, route := range routes {
		s.add("route table %#x %s via %s type %d", route.Table, route.Dst, route.Gw, route.Type)
	}
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, rule := range rules {
		s.add("rule %s", rule)
	}
	return s.filter()
}

// filter lists the sets of the packet filter.
func (s snapshot) filter() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return err
	}
	for _, table := range tables {
		sets, err := conn.GetSets(table)
		if err != nil {
			return err
		}
		for _, set := range sets {
			elements, err := conn.GetSetElements(set)
			if err != nil {
				return err
			}
			if table.Name == "godwit-flows" && set.Name == "ingress" { // saved marks expire
				continue
			}
			for _, element := range elements {
				s.add("element of set %s %s: %x", table.Name, set.Name, element.Key)
			}
		}
	}
	return nil
}
