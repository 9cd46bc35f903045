package engines

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// flat flattens JSON: each value by the names that lead to it.
func flat(t *testing.T, text string) map[string]string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	all := map[string]string{}
	flatten("", value, all)
	return all
}

func flatten(name string, value any, all map[string]string) {
	switch value := value.(type) {
	case map[string]any:
		for key, one := range value {
			flatten(name+"."+key, one, all)
		}
	case []any: // their order may change
		var words []string
		for i, one := range value {
			if keyed, is := one.(map[string]any); is {
				flatten(fmt.Sprintf("%s[%v]", name,
					cmp.Or(keyed["path"], keyed["Destination"], keyed["destination"], any(i))), one, all)
			} else {
				words = append(words, fmt.Sprint(one))
			}
		}
		slices.Sort(words)
		all[name] = strings.Join(words, "\n")
	default:
		all[name] = fmt.Sprint(value)
	}
}

// byGodwit returns Godwit's description of a container, by name.
func byGodwit(t *testing.T, s subject, node, container string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, value := range flat(t, in(t, node, "godwit", "inspect", godwitName(s, container))) {
		all["godwit"+name] = value
	}
	return all
}

// unlikeByGodwit returns the values that may differ at another node.
func unlikeByGodwit() []string {
	return []string{"godwit.pid", "godwit.started", "godwit.definition.engine", "godwit.measured", "created",
		"image_id", "io.godwit."}
}

// echoAddress returns where a container with its own address answers.
func echoAddress(t *testing.T, s subject, container string) string {
	t.Helper()
	one := conformance{s: s}.seen(t, "a", container)
	return net.JoinHostPort(one.Definition.Network.Address.String(), "80")
}

// byCommand is Docker or Podman.
type byCommand struct{ cli }

func (c byCommand) name() string { return string(c.cli) }

func (c byCommand) version(t *testing.T) string {
	t.Helper()
	if c.cli == inDocker {
		return in(t, "a", "docker", "version", "--format", "{{.Server.Version}}")
	}
	return in(t, "a", "podman", "version", "--format", "{{.Version}}")
}

func (c byCommand) run(t *testing.T, node, container string, asked []string, script string) {
	t.Helper()
	if !strings.Contains(strings.Join(asked, " "), "--network") {
		asked = append([]string{"--network", "none"}, asked...)
	}
	if strings.Contains(strings.Join(asked, " "), "--secret") {
		in(t, node, "sh", "-c", "echo hush | podman secret create conformance -")
		t.Cleanup(func() {
			_, _ = world.lab.Exec(context.Background(), node, "podman", "secret",
				"rm", "conformance")
		})
	}
	args := append([]string{c.name(), "run", "--detach", "--name", container}, asked...)
	in(t, node, append(args, image, "/bin/sh", "-c", script)...)
}

func (c byCommand) execs(container, user, script string) []string {
	args := []string{c.name(), "exec"}
	if user != "" {
		args = append(args, "--user", user)
	}
	return append(args, container, "/bin/sh", "-c", script)
}

func (c byCommand) logs(container string) []string { return []string{c.name(), "logs", container} }

func (c byCommand) told(t *testing.T, node, container string) map[string]string {
	t.Helper()
	if strings.Contains(strings.ToLower(in(t, node, c.name(), "inspect", container)), `"healthcheck"`) {
		c.isHealthy(t, node, container)
	}
	all := byGodwit(t, c, node, container)
	for name, value := range flat(t, in(t, node, c.name(), "container", "inspect", container)) {
		if strings.Contains(name, ".Cap") { // it has two notations
			value = strings.TrimPrefix(value, "CAP_")
		}
		if value == "<nil>" { // Podman 5's notation for an empty value
			value = ""
		}
		all[name] = value
	}
	all["errors in its log"] = in(t, node, "sh", "-c", "PODMAN_IGNORE_CGROUPSV1_WARNING=1 "+c.name()+" logs "+
		container+" 2>&1 >/dev/null")
	return all
}

func (c byCommand) isHealthy(t *testing.T, node, container string) {
	t.Helper()
	eventually(t, "it is healthy on "+node, func() bool {
		if c.cli == inPodman { // a lab's node has no systemd that would run it
			in(t, node, "podman", "healthcheck", "run", container)
		}
		health := strings.Fields(c.inspected(t, node, container, ".State.Health.Status}} "+
			"{{.State.Health.FailingStreak"))
		if len(health) != 2 || health[0] == "unhealthy" || health[1] != "0" {
			t.Fatalf("its health is %q", health)
		}
		return health[0] == "healthy"
	})
}

func (c byCommand) unlike() []string {
	return append(unlikeByGodwit(), ".Id", ".Created", "Path", ".State.", ".GraphDriver.", ".Sandbox",
		"Runtime", "StaticDir", "PidFile", ".Image", "Networks.none.",
		".ExecIDs", // of the last checks
		// Docker has two notations for an empty list, mounts have more than one notation, and Podman shows
		// the command that made the container.
		".Devices", "HostConfig.Mounts", ".Mode", "HostConfig.Binds", "CreateCommand", "lockNumber")
}

func (c byCommand) does(what verb, container string) []string {
	if what == remove {
		return []string{"sh", "-c", strings.Join(c.remove(container), " ") + "; " + c.name() +
			" volume ls --quiet --filter dangling=true | xargs -r " + c.name() + " volume rm"}
	}
	return []string{c.name(), string(what), container}
}

func (c byCommand) listing() []string { return []string{c.name(), "ps", "--all"} }

func (c byCommand) nothing(t *testing.T, node, container string) {
	t.Helper()
	c.cli.nothing(t, node, container)
	if volumes := in(t, node, c.name(), "volume", "ls", "--quiet"); volumes != "" {
		t.Errorf("volumes on %s: %s", node, volumes)
	}
	if c.cli == inPodman {
		unguarded(t, node)
	}
}

func (c byCommand) restarts(t *testing.T, node, container string) string {
	t.Helper()
	return c.inspected(t, node, container, ".RestartCount")
}

// byDocker is Docker, which keeps connections on bridges.
type byDocker struct{ byCommand }

func (d byDocker) serves(t *testing.T) []string {
	t.Helper()
	makeBridges(t)
	return []string{"--network", networkName, "--publish", "8080:80"}
}

func (c byCommand) address(t *testing.T, _ string) string {
	t.Helper()
	return net.JoinHostPort(addressOf(t, "a"), "8080")
}

// byPodman is Podman, which has bridges, too.
type byPodman struct{ byCommand }

func (p byPodman) serves(t *testing.T) []string {
	t.Helper()
	makePodmanBridges(t)
	return []string{"--network", networkName, "--publish", "8080:80"}
}

// embedded is Godwit's own engine.
type embedded struct{}

func (embedded) name() string { return ownEngine }

func (embedded) version(*testing.T) string { return "" }

// bringUpEmbedded loads the tests' image into Godwit's own store.
func bringUpEmbedded(ctx context.Context, node string) error {
	_, err := world.lab.Exec(ctx, node, "sh", "-c", "docker save "+image+" | godwit image load -")
	return err
}

func (embedded) run(t *testing.T, node, container string, asked []string, script string) {
	t.Helper()
	args := append([]string{"godwit", "run", "--detach", "--name", container}, asked...)
	in(t, node, append(args, image, "/bin/sh", "-c", script)...)
}

func (embedded) execs(container, user, script string) []string {
	args := []string{"godwit", "exec"}
	if user != "" {
		args = append(args, "--user", user)
	}
	return append(args, container, "/bin/sh", "-c", script)
}

func (embedded) logs(container string) []string { return []string{"godwit", "logs", container} }

func (e embedded) told(t *testing.T, node, container string) map[string]string {
	t.Helper()
	return byGodwit(t, e, node, container)
}

func (embedded) unlike() []string { return unlikeByGodwit() }

func (embedded) does(what verb, container string) []string {
	switch what {
	case stop:
		return []string{"godwit", "stop", container}
	case remove:
		return []string{"sh", "-c", "godwit rm --force " + container +
			"; godwit volume rm conformance 2>/dev/null || true"}
	case pause, unpause, start:
	}
	return nil
}

func (embedded) listing() []string { return []string{"godwit", "ps", "--all"} }

func (e embedded) nothing(t *testing.T, node, container string) {
	t.Helper()
	if listed := in(t, node, e.listing()...); strings.Contains(listed, container) {
		t.Errorf("it is still on %s: %s", node, listed)
	}
}

func (embedded) serves(*testing.T) []string { return nil }

func (e embedded) address(t *testing.T, container string) string {
	t.Helper()
	return echoAddress(t, e, container)
}

// inContainerd is containerd, by ctr, in its default namespace.
type inContainerd struct{}

func (inContainerd) name() string { return containerdEngine }

// ctrLog returns the path of a containerd container's log, on its node.
func ctrLog(container string) string { return "/run/" + container + ".log" }

func (inContainerd) version(t *testing.T) string {
	t.Helper()
	return in(t, "a", "sh", "-c", "ctr version | awk '/Server:/ { server = 1 } server && /Version:/ { "+
		"print $2 }'")
}

func (inContainerd) run(t *testing.T, node, container string, asked []string, script string) {
	t.Helper()
	args := append([]string{"ctr", "run", "--detach", "--log-uri", "file://" + ctrLog(container)}, asked...)
	in(t, node, append(args, ctrImage, container, "/bin/sh", "-c", script)...)
}

func (inContainerd) execs(container, user, script string) []string {
	args := []string{"ctr", "task", "exec", "--exec-id", "look"}
	if user != "" {
		args = append(args, "--user", user)
	}
	return append(args, container, "/bin/sh", "-c", script)
}

func (inContainerd) logs(container string) []string {
	return []string{"godwit", "logs", containerdEngine + ":" + container}
}

func (c inContainerd) told(t *testing.T, node, container string) map[string]string {
	t.Helper()
	all := byGodwit(t, c, node, container)
	for name, value := range flat(t, in(t, node, "ctr", "containers", "info", container)) {
		all[name] = value
	}
	return all
}

func (inContainerd) unlike() []string {
	// which it gets for its log
	return append(unlikeByGodwit(), "CreatedAt", "UpdatedAt", ".Runtime", "restart.loguri")
}

func (inContainerd) does(what verb, container string) []string {
	switch what {
	case pause: // containerd's restart monitor reacts to a pause with a new task every ten seconds
		return []string{"sh", "-c", "ctr containers label " + container +
			" containerd.io/restart.status= && ctr task pause " + container}
	case unpause:
		return []string{"sh", "-c", "ctr task resume " + container + " && ctr containers label " + container +
			" containerd.io/restart.status=running"}
	case stop: // for good: otherwise it is restarted
		return []string{"sh", "-c", "ctr containers label " + container +
			" containerd.io/restart.status= && ctr task kill -s USR1 " + container}
	case start: // containerd must forget that, because it ends containers that should be stopped
		return []string{"sh", "-c", "ctr containers label " + container +
			" containerd.io/restart.status= && { ctr task rm " + container +
			"; ctr task start --detach --null-io " + container + "; }"}
	case remove: // with its log, to which another container of this name would append
		return []string{"sh", "-c", "godwit rm --force " + containerdEngine + ":" + container +
			"; code=$?; rm -f " + ctrLog(container) + "; exit $code"}
	}
	return nil
}

func (inContainerd) listing() []string { return []string{"ctr", "containers", "ls"} }

func (inContainerd) nothing(t *testing.T, node, _ string) {
	t.Helper()
	ctrNothing(t, node, "default")
}

func (inContainerd) serves(t *testing.T) []string {
	t.Helper()
	makeCNI(t)
	return []string{"--cni"}
}

func (c inContainerd) address(t *testing.T, container string) string {
	t.Helper()
	return echoAddress(t, c, container)
}

// inLXC is LXC, by its tools.
type inLXC struct{}

func (inLXC) name() string { return lxcEngine }

func (inLXC) version(t *testing.T) string {
	t.Helper()
	return in(t, "a", "lxc-start", "--version")
}

// lacks: LXC 7 reads no configuration with settings of cgroup version 1, which alone can limit a container
// if version 2 has no controllers.
func (l inLXC) lacks(t *testing.T, p property) string {
	t.Helper()
	const settings = "lxc.cgroup"
	isOne := func(line string) bool { return strings.HasPrefix(line, settings+".") }
	if engine.Since(l.version(t), "7") && slices.ContainsFunc(p.asked[lxcEngine], isOne) {
		return settings
	}
	return ""
}

// lxcLog is the output file of an LXC container, which has no log.
const lxcLog = "/ticks"

func (inLXC) run(t *testing.T, node, container string, asked []string, script string) {
	t.Helper()
	address := map[string]string{"a": "10.88.1.200", "b": "10.88.2.200"}[node]
	inittab := "::sysinit:/bin/true\n::once:/bin/sh /script\n"
	directory, err := world.lab.Engines().CreateLXC(t.Context(), node, container, address, inittab, asked...)
	if err == nil {
		err = os.WriteFile(filepath.Join(directory, "rootfs/script"), []byte("exec >"+lxcLog+"\n"+script),
			0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	in(t, node, "lxc-start", "-n", container)
	in(t, node, "sh", "-c", "until lxc-attach -n "+container+" -- /bin/sh -c 'until [ -e "+lxcLog+
		" ]; do sleep 0.05; done'; do sleep 0.05; done")
}

func (inLXC) execs(container, _, script string) []string {
	return []string{"lxc-attach", "-n", container, "--", "/bin/sh", "-c", script}
}

func (inLXC) logs(container string) []string {
	return []string{"lxc-attach", "-n", container, "--", "/bin/cat", lxcLog}
}

func (l inLXC) told(t *testing.T, node, container string) map[string]string {
	t.Helper()
	all := byGodwit(t, l, node, container)
	all["list"] = in(t, node, "lxc-ls", "-f", "-F", "NAME,STATE,AUTOSTART,GROUPS,IPV4,UNPRIVILEGED")
	all["configuration"] = in(t, node, "sh", "-c",
		"grep -v -e ^# -e ^$ /var/lib/lxc/"+container+"/config | tr -d '\"'")
	return all
}

func (inLXC) unlike() []string { return unlikeByGodwit() }

func (inLXC) does(what verb, container string) []string {
	program, is := map[verb]string{pause: "lxc-freeze", unpause: "lxc-unfreeze", start: "lxc-start"}[what]
	switch {
	case is:
		return []string{program, "-n", container}
	case what == stop:
		return []string{"lxc-stop", "-n", container, "-t", "2"}
	}
	return []string{"lxc-destroy", "-f", "-n", container}
}

func (inLXC) listing() []string { return []string{"lxc-ls"} }

func (l inLXC) nothing(t *testing.T, node, container string) {
	t.Helper()
	if listed := in(t, node, l.listing()...); strings.Contains(listed, container) {
		t.Errorf("it is still on %s: %s", node, listed)
	}
}

func (inLXC) serves(*testing.T) []string { return nil }

func (l inLXC) address(t *testing.T, container string) string {
	t.Helper()
	return echoAddress(t, l, container)
}
