//go:build hosts

package hosts

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// guest is a web server in a container of one engine: NGINX, whose workers run as www-data.
type guest struct {
	engine string
	ref    string // Godwit's name for the container
	// setup prepares a node's engine, start starts the container and remove removes it: scripts.
	setup, start, remove string
	// published is the port of the first node that leads to the container; 0: clients reach the container's
	// own address.
	published int
}

// image is the engines' name for the payload's NGINX.
const image = "localhost/nginx:latest"

func guests() []guest {
	return []guest{
		{
			engine: "embedded", ref: "web",
			setup:  "godwit image load /mnt/nginx.tar",
			start:  "godwit run --detach --name web " + image,
			remove: "godwit stop web; godwit rm web",
		},
		{
			engine: "docker", ref: "docker:web", published: 8080,
			setup: "systemctl start docker && godwit engine setup docker && docker load --quiet --input " +
				"/mnt/nginx.tar && " +
				"docker network create --subnet 172.30.0.0/24 --ip-range 172.30.0.128/25 --gateway " +
				"172.30.0.1 birds",
			start: "docker run --detach --name web --network birds --ip 172.30.0.10 --publish 8080:80 " +
				image,
			remove: "docker rm --force web",
		},
		{
			engine: "podman", ref: "podman:web", published: 8081,
			setup: "godwit engine setup podman && podman load --quiet --input /mnt/nginx.tar && " +
				"podman network create --subnet 172.31.0.0/24 --ip-range 172.31.0.128/25 --gateway " +
				"172.31.0.1 birds",
			start: "podman run --detach --name web --network birds --ip 172.31.0.10 --publish 8081:80 " +
				"--log-driver k8s-file " + image,
			remove: "podman rm --force web",
		},
		{
			engine: "containerd", ref: "containerd:web",
			setup: "mkdir -p /opt/cni && ln -sfn /usr/lib/cni /opt/cni/bin && systemctl start containerd && " +
				"godwit engine setup containerd --network birds && ctr images import /mnt/nginx.tar",
			start: "ctr run --detach --cni --log-uri file:///var/log/web.log " + image + " web",
			// ctr leaves what CNI's plugin has made, and the next container of this name would be
			// given the same chain.
			remove: "ctr tasks kill --signal SIGKILL web; ctr tasks delete web; ctr containers delete web; " +
				"iptables-save -t nat | grep -v CNI- | iptables-restore --table nat",
		},
		{
			engine: "lxc", ref: "lxc:web",
			setup: "true",
			// LXC cannot assign an address that Godwit still routes to a container that has just been
			// destroyed.
			start: `timeout 60 sh -c 'while ip route show 10.57.1.200 | grep -q .; do sleep 0.2; done' && ` +
				"mkdir -p /var/lib/lxc/web && cp -a /mnt/nginx /var/lib/lxc/web/rootfs && " +
				"cp /mnt/lxc.conf /var/lib/lxc/web/config && rm -f /tmp/lxc.log && " +
				"{ lxc-start --name web --logfile /tmp/lxc.log --logpriority INFO || { cat /tmp/lxc.log; " +
				"false; }; }",
			remove: "lxc-destroy --force --name web; rm -rf --one-file-system /var/lib/lxc/web",
		},
	}
}

// lxcConfig is the configuration of LXC's container, with an address of the first node.
const lxcConfig = `lxc.uts.name = web
lxc.rootfs.path = dir:/var/lib/lxc/web/rootfs
lxc.init.cmd = /usr/sbin/nginx -g 'daemon off;'
lxc.mount.auto = proc sys
lxc.net.0.type = veth
lxc.net.0.veth.mode = router
lxc.net.0.flags = up
lxc.net.0.mtu = 1390
lxc.net.0.ipv4.address = 10.57.1.200/32
lxc.net.0.ipv4.gateway = 169.254.1.1
lxc.console.path = none
lxc.tty.max = 0
`

// address returns where clients reach the container, which has started on a node.
func (g guest) address(t *testing.T, node *machine) string {
	t.Helper()
	if g.published != 0 {
		return net.JoinHostPort(node.Address(), fmt.Sprint(g.published))
	}
	script := "godwit inspect " + g.ref + ` | sed -n 's/^ *"address": "\([0-9.]*\)".*/\1/p' | head -n 1`
	address := node.run(t, script)
	if net.ParseIP(address) == nil {
		t.Fatalf("the address of %s is %q", g.ref, address)
	}
	return net.JoinHostPort(address, "80")
}

// users returns the users of the container's processes, as a node reports them.
func (g guest) users(t *testing.T, node *machine) string {
	t.Helper()
	return strings.Join(strings.Fields(node.run(t, "ps -C nginx -o uid= | sort -u")), " ")
}
