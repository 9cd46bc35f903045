package engines

import (
	"strings"
	"testing"
)

// A container with NET_ADMIN: objects that it has made in its network namespace are refused with their
// names, and objects of its engine there, here and for a container that has moved, are not.

func TestDockerNetAdmin(t *testing.T) {
	makeBridges(t)
	inDocker.administers(t, "172.30.0.1")
}

func TestPodmanNetAdmin(t *testing.T) {
	makePodmanBridges(t)
	inPodman.administers(t, "172.31.0.1")
}

func (c cli) administers(t *testing.T, gateway string) {
	t.Helper()
	name := c.run(t, []string{"--network", networkName, "--cap-add", "NET_ADMIN"}, count)
	inside := string(c) + " exec " + name + " busybox"
	namespace := "/proc/" + c.inspected(t, "a", name, ".State.Pid") + "/ns/net"
	refusesNetwork(t, string(c)+":"+name, inside, namespace, gateway)
	c.migrate(t, name, "a", "b", "pre-copy")
	c.counted(t, "b", name, 1)
	c.migrate(t, name, "b", "a", "cold")
}

func TestContainerdNetAdmin(t *testing.T) {
	makeCNI(t)
	name := ctr(t, "default", []string{"--cni", "--cap-add", "CAP_NET_ADMIN"}, count)
	inside := "ctr task exec --exec-id made " + name + " /bin/busybox"
	pid := in(t, "a", "sh", "-c", "ctr task ls | grep '^"+name+" ' | tr -s ' ' | cut -d ' ' -f 2")
	refusesNetwork(t, "containerd:"+name, inside, "/proc/"+strings.TrimSpace(pid)+"/ns/net", "172.29.0.1")
	in(t, "a", "godwit", "migrate", "containerd:"+name, "b")
	ctrCounted(t, "b", name, 1)
}

// refusesNetwork makes objects in a container's network namespace, and removes them.
func refusesNetwork(t *testing.T, container, inside, namespace, gateway string) {
	t.Helper()
	plan := func() string {
		said, _ := world.lab.Exec(t.Context(), "a", "godwit", "migrate", "--dry-run", container, "b")
		return said
	}
	if said := plan(); !strings.Contains(said, "would work") {
		t.Errorf("with nothing of its own: %s", said)
	}
	outside := "nsenter --net=" + namespace
	for _, one := range []struct{ make, remove, words string }{
		{
			inside + " ip address add 10.77.0.1/32 dev lo",
			inside + " ip address del 10.77.0.1/32 dev lo",
			"address 10.77.0.1/32",
		},
		{
			inside + " ip route add 10.78.0.0/16 via " + gateway,
			inside + " ip route del 10.78.0.0/16",
			"route to 10.78.0.0/16",
		},
		{
			outside + " iptables -A OUTPUT -d 10.79.0.0/16 -j DROP",
			outside + " iptables -F OUTPUT",
			"rules of the packet filter",
		},
	} {
		in(t, "a", "sh", "-c", one.make)
		said := plan()
		if !strings.Contains(said, one.words) || !strings.Contains(said, "network namespace") {
			t.Errorf("%s: %s", one.make, said)
		}
		in(t, "a", "sh", "-c", one.remove)
	}
}
