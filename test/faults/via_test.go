package faults

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/migration"
)

// via is the engine of a world's container, as the prefix in references.
type via string

const (
	embedded   via = ""
	docker     via = "docker"
	podman     via = "podman"
	containerd via = "containerd"
	lxc        via = "lxc"
)

// The image of Redis, by the name in all engines with images, and the network of a container of another
// engine.
const (
	redisImage  = "localhost/redis:latest"
	networkName = "birds"
	cniFile     = "/etc/cni/net.d/10-" + networkName + ".conflist"
	cniList     = `{"cniVersion":"0.4.0","name":"` + networkName + `","plugins":[{"type":"bridge","bridge":"cni-birds",
		"isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","routes":[{"dst":"0.0.0.0/0"}],
		"ranges":[[{"subnet":"172.29.0.0/24"}]]}},{"type":"firewall"},{"type":"tuning"}]}`
)

// newWorldVia makes a world with a container of an engine.
func newWorldVia(t *testing.T, v via, mode migration.Mode, peerTimeout string) *world {
	t.Helper()
	w := newNodesOf(t, lab.Config{}, peerTimeout)
	w.mode, w.via = mode, v
	if v != embedded {
		archive, err := labimage.Build(t.Context(), "redis", filepath.Join(lab.StateDirectory, "images"))
		for _, node := range nodes { // separate ones; the machine's are not for tests
			if err == nil {
				err = v.bringUp(t.Context(), w.lab, node, archive)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.startRedis(t)
	return w
}

// bringUp prepares the engine of a node, with the image and a network.
func (v via) bringUp(ctx context.Context, up *lab.Lab, node, archive string) error {
	network := string(v) + " network create --subnet 172.30.0.0/24 --gateway 172.30.0.1 " + networkName
	load := string(v) + " load --input " + archive
	var err error
	switch v {
	case docker:
		err = up.Engines().StartDocker(ctx, node)
	case podman:
		err = up.Engines().PreparePodman(ctx, node)
		load += "; godwit engine setup podman"
	case containerd:
		err = up.Engines().StartContainerd(ctx, node)
		network = "mkdir -p " + filepath.Dir(cniFile) + "; echo '" + cniList + "' >" + cniFile
		load = "ctr images import " + archive + "; godwit engine setup containerd"
	case lxc:
		return up.Engines().PrepareLXC(ctx, node)
	case embedded:
		return nil
	}
	if err == nil {
		_, err = up.Exec(ctx, node, "sh", "-c", "set -e; "+load+"; "+network)
	}
	if err != nil {
		return fmt.Errorf("%s on %s: %w", v, node, err)
	}
	return nil
}

// run returns the command that starts Redis.
func (v via) run() []string {
	if v == containerd {
		return []string{"ctr", "run", "--detach", "--null-io", "--cni", redisImage, container}
	}
	return []string{
		string(v), "run", "--detach", "--name", container, "--network", networkName, "--publish", "6379:6379",
		redisImage,
	}
}

// exec returns the command that runs a program in the container.
func (v via) exec(program ...string) []string {
	args := []string{"godwit", "exec", container}
	switch v {
	case docker, podman:
		args = []string{string(v), "exec", container}
	case containerd:
		args = []string{"ctr", "task", "exec", "--exec-id", "look", container}
	case embedded, lxc:
	}
	return append(args, program...)
}

// starts returns a script with which people make the engine start its copy; empty: the engine has no such
// command.
func (v via) starts() string {
	switch v {
	case docker, podman:
		return string(v) + " restart --time 1 " + container
	case containerd:
		return "ctr task rm --force " + container + "; ctr task start --detach --null-io " + container
	case lxc:
		return "lxc-stop -k -n " + container + "; lxc-start -n " + container
	case embedded:
	}
	return ""
}

// removes returns a script with which they remove it.
func (v via) removes() string {
	switch v {
	case docker:
		return "docker rm --force " + container
	case podman:
		return "podman rm --force --time=0 " + container
	case containerd:
		return "ctr task rm --force " + container + "; ctr container rm " + container
	case lxc:
		return "lxc-destroy -f -n " + container
	case embedded:
	}
	return "godwit rm --force " + container
}

// startByCommand starts Redis with the engine's own command line.
func (w *world) startByCommand(t *testing.T) {
	t.Helper()
	w.inNode(t, "a", w.via.run()...)
	w.awaitSeen(t)
	w.askRedis(t)
}

// awaitSeen waits until the agent of a sees the container, and notes its id.
func (w *world) awaitSeen(t *testing.T) {
	t.Helper()
	eventually(t, "the agent to see the container", func() error {
		list, err := w.containers(t.Context(), "a")
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("it sees %d", len(list))
		}
		if err == nil {
			w.id = list[0].Definition.ID
		}
		return err
	})
}

// serves returns the address at which Redis answers.
func (w *world) serves(t *testing.T) string {
	t.Helper()
	if w.via == docker || w.via == podman {
		address, err := w.lab.Address("a")
		if err != nil {
			t.Fatal(err)
		}
		return address.String() + ":6379"
	}
	return w.find(t, "a", container).Definition.Network.Address.String() + ":6379"
}

// random matches names that an engine generates for each container.
var random = regexp.MustCompile(
	`[0-9a-f]{12,}|overlay2?/(l/)?[0-9A-Za-z-]+|snapshots/[0-9]+|veth[0-9a-f]+|/proc/[0-9]+/`)

// foreign matches files that are not Godwit's: in the lab, the engines' own files are there. An empty
// directory for records of a container's move may stay. Podman leaves the network namespace of a failed
// start, and mounts its storage on itself only as long as that start or a container needs it.
var foreign = regexp.MustCompile(`^file [-a-zA-Z]* var/lib/godwit/` +
	`((dockerd|podman|containerd)(/|$)|engines/[a-z]+/[^/]+(/private)?$)|^mount (nsfs /run/netns/netns-|[^ ]+ /var/lib/containers/storage/overlay$)`)

// alike removes the differences in such names from the lines of a snapshot.
func (w *world) alike(s snapshot) snapshot {
	if w.via == embedded || w.via == lxc {
		return s
	}
	all := snapshot{}
	for line := range s {
		if foreign.MatchString(line) {
			continue
		}
		all[random.ReplaceAllString(strings.ReplaceAll(line, w.id, container), "*")] = true
	}
	return all
}

// TestFaultsEngines runs combinations with a container of each engine except Godwit's own. With -short it
// runs some outside actions with Docker, and some faults with LXC: test/engines covers the other
// differences.
func TestFaultsEngines(t *testing.T) {
	for _, v := range []via{docker, podman, containerd, lxc} {
		all, oneOf := append(faults(), outside(v, migration.PreCopy)...), 48
		if v == lxc {
			all = slices.DeleteFunc(all, func(f fault) bool { return f.kind == linkBlinks })
		}
		if testing.Short() && v == docker {
			all, oneOf = outside(v, migration.PreCopy), 12
		}
		if testing.Short() && v != docker && v != lxc {
			continue
		}
		t.Run(string(v), func(t *testing.T) { runFaultsVia(t, v, migration.PreCopy, all, oneOf) })
	}
}
