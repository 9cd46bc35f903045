package engines

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
)

// TestLXCAddressAgain: the address of a container that LXC's own tools have removed is free for another
// one, at its home and after it has moved away.
func TestLXCAddressAgain(t *testing.T) {
	makeClients(t)
	s := inLXC{}
	c := conformance{s: s}
	const container = "again"
	for _, moves := range []bool{false, true, false} {
		c.begins(t, container, nil, echo)
		talk(t, clientMachine, s.address(t, container))
		if moves {
			if err := c.migrate(t, container, "a", "b", "cold"); err != nil {
				t.Fatal(err)
			}
		}
		c.removed(container)
		// otherwise LXC could not assign its address to another container
		eventually(t, "it is not elsewhere for its home", func() bool {
			return in(t, "a", "ip", "route", "show", "10.88.1.200") == ""
		})
	}
}

// visitor requests a web server's first page, again and again, on one connection.
type visitor struct {
	conn    net.Conn
	answers *bufio.Reader
}

func visit(t *testing.T, machine, address string) *visitor {
	t.Helper()
	v := &visitor{}
	eventually(t, machine+" to "+address, func() bool {
		conn, err := world.lab.Dial(t.Context(), machine, "tcp", address)
		if err != nil {
			return false
		}
		v.conn, v.answers = conn, bufio.NewReader(conn)
		return true
	})
	t.Cleanup(func() { _ = v.conn.Close() })
	if err := v.try(); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *visitor) try() error {
	_ = v.conn.SetDeadline(time.Now().Add(20 * time.Second)) // the connection is not used later
	if _, err := io.WriteString(v.conn, "GET / HTTP/1.1\r\nHost: debian\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(v.answers, nil)
	if err != nil {
		return err
	}
	page, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || len(page) == 0) {
		err = fmt.Errorf("the answer is %s, with %d bytes", answer.Status, len(page))
	}
	return err
}

// withoutDevices checks that a container with the limits of devices of LXC's own configuration is refused,
// if only version 2 of cgroups could have them for this LXC, and restarts it with everything else in that
// configuration that systemd needs.
func withoutDevices(t *testing.T, c conformance, container string) {
	t.Helper()
	if err := c.migrate(t, container, "a", "b", "cold"); err == nil ||
		!strings.Contains(err.Error(), "limits of devices") {
		t.Errorf("with limits of devices: %v", err)
	}
	in(t, "a", "lxc-stop", "-k", "-n", container)
	const settings = `lxc.tty.dir = lxc
lxc.pty.max = 1024
lxc.cap.drop = mac_admin mac_override sys_time sys_module sys_rawio
lxc.mount.auto = cgroup:mixed proc:mixed sys:mixed
lxc.seccomp.profile = /usr/share/lxc/config/common.seccomp
`
	config := "/var/lib/lxc/" + container + "/config"
	in(t, "a", "sh", "-c", "sed -i '/^lxc.include/d' "+config+" && cat >>"+config+" <<END\n"+settings+"END")
	in(t, "a", "lxc-start", "-n", container)
}

// TestLXCSystemd moves a Debian container in which systemd has started NGINX, with a visitor that stays.
// systemd's view of its services, and their control groups, are the same afterwards, and systemd continues
// to supervise them.
func TestLXCSystemd(t *testing.T) {
	makeClients(t)
	c := conformance{s: inLXC{}}
	const container, address = "debian", "10.88.1.220"
	t.Cleanup(func() { c.removed(container) })
	err := world.lab.Engines().CreateLXCSystem("a", container, address, func(directory string) error {
		return labimage.Unpack(t.Context(), "debian", filepath.Join(lab.StateDirectory, "images"), directory)
	})
	if err != nil {
		t.Fatal(err)
	}
	in(t, "a", "lxc-start", "-n", container)
	if engine.Since(c.s.version(t), "7") {
		withoutDevices(t, c, container)
	}
	asks := func(node, script string) string { return in(t, node, c.s.execs(container, "", script)...) }
	eventually(t, "systemd has started all", func() bool {
		said, _ := world.lab.Exec(t.Context(), "a",
			c.s.execs(container, "", "systemctl is-system-running")...)
		return said == "running\n"
	})
	visitor := visit(t, clientMachine, net.JoinHostPort(address, "80"))
	asks("a", "echo 321 >/proc/sys/net/core/somaxconn") // in addition to systemd's settings
	const look = `cd /proc/sys/net; cat ipv4/ping_group_range ipv4/conf/all/rp_filter core/somaxconn
		systemctl show nginx --property=ActiveState,MainPID,NRestarts,ControlGroup
		cd /proc; for p in [0-9]*; do case $(cat $p/comm) in nginx|systemd*) echo $p $(cat $p/comm) $(cat $p/cgroup) ;; esac; done`
	was, from, to := asks("a", look), "a", "b"
	for _, mode := range modes() {
		whileTalking(t, visitor, func() {
			if err := c.migrate(t, container, from, to, mode); err != nil {
				t.Fatal(err)
			}
		})
		c.s.nothing(t, from, container)
		from, to = to, from
		if is := asks(from, look); is != was {
			t.Errorf("%s to %s: it was\n%s\nis\n%s", mode, from, was, is)
		}
		if state := asks(from, "kill -9 $(systemctl show nginx --property=MainPID --value) && systemctl "+
			"restart nginx && systemctl is-system-running"); state != "running" {
			t.Errorf("%s to %s: systemd says %s", mode, from, state)
		}
		visitor, was = visit(t, clientMachine, net.JoinHostPort(address, "80")), asks(from, look)
	}
}
