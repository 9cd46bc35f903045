package vet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/apparmor"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/creds"
	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	ext_file "github.com/checkpoint-restore/go-criu/v7/crit/images/ext-file"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/fown"
	ghost_file "github.com/checkpoint-restore/go-criu/v7/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/ns"
	packet_sock "github.com/checkpoint-restore/go-criu/v7/crit/images/packet-sock"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/regfile"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/seccomp"
	sk_inet "github.com/checkpoint-restore/go-criu/v7/crit/images/sk-inet"
	sk_opts "github.com/checkpoint-restore/go-criu/v7/crit/images/sk-opts"
	sk_unix "github.com/checkpoint-restore/go-criu/v7/crit/images/sk-unix"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/userns"
	"google.golang.org/protobuf/proto"
)

// hostile is one change of a genuine dump, and what the refusal says.
type hostile struct {
	name string
	says string
	do   func(d *dump)
}

func TestGenuine(t *testing.T) {
	d := genuine(t)
	if _, err := Images(d.dir, d.agreed); err != nil {
		t.Fatal(err)
	}
}

// TestDefaultProfile checks that processes with Podman's default profile of another version get this
// node's.
func TestDefaultProfile(t *testing.T) {
	const own, other = "containers-default-0.50.1", "containers-default-0.62.2"
	for have, want := range map[string]string{own: "", other: own} {
		d := genuine(t)
		d.agreed.Profile = own
		for _, image := range []string{"core-1.img", "core-7.img", "core-23.img"} {
			change(d, image, &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
				c.ThreadCore.Creds.LsmProfile = proto.String(have)
				return true
			})
		}
		if profile, err := Images(d.dir, d.agreed); profile != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", have, profile, err, want)
		}
	}
}

// TestGenuineChanges makes changes that a container may have made itself, which must be accepted.
func TestGenuineChanges(t *testing.T) {
	for name, do := range map[string]func(d *dump){
		"a part of its own root in a mount namespace of its own": func(d *dump) {
			d.agreed.Capabilities = AllCapabilities
			var root *mnt.MntEntry
			change(d, "mountpoints-12.img", &mnt.MntEntry{}, func(_ int, m *mnt.MntEntry) bool {
				if m.GetMountpoint() == "/" {
					root = proto.CloneOf(m)
				}
				return true
			})
			root.MntId = proto.Uint32(9000)
			d.add("mountpoints-40.img", magicMounts, root)
			root.MntId, root.Root, root.Mountpoint = proto.Uint32(9001), proto.String("/var/tmp/private"),
				proto.String("/var/tmp")
			d.add("mountpoints-40.img", magicMounts, root)
		},
		"memory that a container that may mount has mounted": func(d *dump) {
			d.agreed.Capabilities = AllCapabilities
			addedMount("", "", func(*mnt.MntEntry) {}).do(d)
		},
		"fewer capabilities": func(d *dump) {
			change(d, "core-7.img", &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
				c.ThreadCore.Creds.CapEff = []uint32{0, 0}
				return true
			})
		},
		"a process that only waits for its parent": func(d *dump) {
			change(d, "core-7.img", &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
				c.Tc.TaskState, c.ThreadCore = proto.Uint32(stateDead), nil
				return true
			})
		},
		"nothing, where it cannot change its user": func(d *dump) { restrict(d, func(*creds.CredsEntry) {}) },
		"a group of its definition, where it cannot change its user": func(d *dump) {
			d.agreed.User.AdditionalGids = append(d.agreed.User.AdditionalGids, 42)
			restrict(d, func(c *creds.CredsEntry) { c.Groups = []uint32{0, 42} })
		},
		"another user, which a program in its files can give": func(d *dump) {
			restrict(d, func(c *creds.CredsEntry) { c.Euid = proto.Uint32(1000) })
			d.agreed.NoNewPrivileges = false
		},
		"a profile below its own": func(d *dump) {
			d.agreed.Profile = "docker-default"
			for _, image := range []string{"core-1.img", "core-7.img", "core-23.img"} {
				change(d, image, &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
					c.ThreadCore.Creds.LsmProfile = proto.String("docker-default//own")
					return true
				})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := genuine(t)
			do(d)
			if _, err := Images(d.dir, d.agreed); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHostile changes one thing of a genuine dump at a time.
func TestHostile(t *testing.T) {
	for _, list := range [][]hostile{hostileProcesses(), hostileUsers(), hostileNamespaces(), hostileMounts(),
		hostileFiles(), hostileForms()} {
		for _, one := range list {
			t.Run(one.name, func(t *testing.T) {
				d := genuine(t)
				one.do(d)
				_, err := Images(d.dir, d.agreed)
				if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), one.says) {
					t.Errorf("the answer is %v, want a refusal with %q", err, one.says)
				}
			})
		}
	}
}

// process changes one thread's image.
func process(name, says, image string, how func(t *core.CoreEntry)) hostile {
	return hostile{name, says, func(d *dump) {
		change(d, image, &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
			how(c)
			return true
		})
	}}
}

func hostileProcesses() []hostile {
	credentials := func(name, says string, how func(c *creds.CredsEntry)) hostile {
		return process(name, says, "core-7.img", func(c *core.CoreEntry) { how(c.ThreadCore.Creds) })
	}
	unknown := func(field byte, values ...byte) func(*creds.CredsEntry) {
		return func(c *creds.CredsEntry) {
			var more []byte
			for _, value := range values {
				more = append(more, field<<3&0x7f|0x80, field>>4, value)
			}
			c.ProtoReflect().SetUnknown(more)
		}
	}
	return []hostile{
		credentials("all effective", "process 7: its effective capabilities have",
			func(c *creds.CredsEntry) { c.CapEff = []uint32{^uint32(0), 511} }),
		credentials("admin permitted", "CAP_SYS_ADMIN", func(c *creds.CredsEntry) { c.CapPrm[0] |= 1 << 21 }),
		credentials("admin inheritable", "inheritable capabilities have CAP_SYS_ADMIN",
			func(c *creds.CredsEntry) { c.CapInh[0] |= 1 << 21 }),
		credentials("admin bounding", "bounding capabilities have CAP_SYS_ADMIN",
			func(c *creds.CredsEntry) { c.CapBnd[0] |= 1 << 21 }),
		credentials("BPF bounding", "CAP_BPF", func(c *creds.CredsEntry) { c.CapBnd[1] |= 1 << 7 }),
		credentials("admin ambient", "ambient capabilities have CAP_MAC_OVERRIDE",
			unknown(credsAmbient, 0, 1)),
		credentials("three words", "words", func(c *creds.CredsEntry) { c.CapBnd = append(c.CapBnd, 1) }),
		process("no credentials", "no credentials", "core-23.img",
			func(c *core.CoreEntry) { c.ThreadCore.Creds = nil }),
		process("no filter", "process 23: its system calls are not filtered", "core-23.img",
			func(c *core.CoreEntry) {
				c.ThreadCore.SeccompMode, c.ThreadCore.SeccompFilter = nil, nil
			}),
		process("filter out of range", "filter", "core-23.img",
			func(c *core.CoreEntry) { c.ThreadCore.SeccompFilter = proto.Uint32(1 << 20) }),
		process("filter where it was", "filter of system calls is in a field", "core-23.img",
			func(c *core.CoreEntry) {
				c.Tc.OldSeccompFilter = proto.Uint32(1)
			}),
		{"filter that lets all through", "lets", func(d *dump) {
			change(d, "seccomp.img", &seccomp.SeccompEntry{}, func(_ int, s *seccomp.SeccompEntry) bool {
				for _, f := range s.SeccompFilters {
					f.Filter = binary.LittleEndian.AppendUint32([]byte{6, 0, 0, 0}, allow)
				}
				return true
			})
		}},
		{"filters without end", "follows", func(d *dump) {
			change(d, "seccomp.img", &seccomp.SeccompEntry{}, func(_ int, s *seccomp.SeccompEntry) bool {
				s.SeccompFilters[0].Prev = proto.Uint32(0)
				return true
			})
		}},
		{"new privileges", "no_new_privs", func(d *dump) { d.agreed.NoNewPrivileges = true }},
		{"new privileges once", "credentials", func(d *dump) {
			d.agreed.NoNewPrivileges = true
			change(d, "core-1.img", &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
				unknown(credsNoNewPrivileges, 1, 0)(c.ThreadCore.Creds)
				return true
			})
		}},
		{"other profile", `security profile is "unconfined"`, func(d *dump) {
			d.agreed.Profile = "docker-default"
			change(d, "core-7.img", &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
				c.ThreadCore.Creds.LsmProfile = proto.String("unconfined")
				return true
			})
		}},
		{"default profile of Podman, where the definition has another",
			`security profile is "containers-default-0.62.2"`, func(d *dump) {
				d.agreed.Profile = "mine"
				change(d, "core-7.img", &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
					c.ThreadCore.Creds.LsmProfile = proto.String("containers-default-0.62.2")
					return true
				})
			}},
		{"below the default profile of Podman", `security profile is "containers-default-0.62.2//own"`,
			func(d *dump) {
				d.agreed.Profile = "containers-default-0.50.1"
				change(d, "core-7.img", &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
					c.ThreadCore.Creds.LsmProfile = proto.String("containers-default-0.62.2//own")
					return true
				})
			}},
		{"policy of AppArmor", "policies", func(d *dump) {
			d.add("apparmor.img", magicApparmor,
				&apparmor.ApparmorEntry{Namespaces: []*apparmor.AaNamespace{{Name: proto.String("x")}}})
		}},
		{"no image of a process", "core-23.img",
			func(d *dump) { check(d.t, os.Remove(filepath.Join(d.dir, "core-23.img"))) }},
		{"process without a parent", "parent", func(d *dump) {
			d.add("pstree.img", magicPstree, &pstree.PstreeEntry{
				Pid: proto.Uint32(99), Ppid: proto.Uint32(0), Pgid: proto.Uint32(99), Sid: proto.Uint32(99),
				Threads: []uint32{99},
			})
		}},
	}
}

// restrict makes a dump that of a container that can neither change its users nor gain privileges, and
// changes the credentials of one process.
func restrict(d *dump, how func(c *creds.CredsEntry)) {
	const ids = 1<<6 | 1<<7 // CAP_SETGID and CAP_SETUID
	d.agreed.NoNewPrivileges = true
	d.agreed.Capabilities &^= ids
	for _, image := range []string{"core-1.img", "core-7.img", "core-23.img"} {
		change(d, image, &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
			its := c.ThreadCore.Creds
			for _, set := range [][]uint32{its.CapEff, its.CapPrm, its.CapInh, its.CapBnd} {
				set[0] &^= ids
			}
			its.ProtoReflect().SetUnknown([]byte{credsNoNewPrivileges<<3&0x7f | 0x80,
				credsNoNewPrivileges >> 4, 1})
			if image == "core-7.img" {
				how(its)
			}
			return true
		})
	}
}

func hostileUsers() []hostile {
	other := func(name, says string, how func(c *creds.CredsEntry)) hostile {
		return hostile{name, says, func(d *dump) { restrict(d, how) }}
	}
	return []hostile{
		other("another user", "process 7: it runs as user 1000, but",
			func(c *creds.CredsEntry) { c.Uid = proto.Uint32(1000) }),
		other("another effective user", "as user 1000",
			func(c *creds.CredsEntry) { c.Euid = proto.Uint32(1000) }),
		other("another saved user", "as user 1000",
			func(c *creds.CredsEntry) { c.Suid = proto.Uint32(1000) }),
		other("another user for files", "as user 1000",
			func(c *creds.CredsEntry) { c.Fsuid = proto.Uint32(1000) }),
		other("another group", "as group 42, but", func(c *creds.CredsEntry) { c.Egid = proto.Uint32(42) }),
		other("one more group", "member of group 42",
			func(c *creds.CredsEntry) { c.Groups = append(c.Groups, 42) }),
		{"root, where another user was agreed", "process 1: it runs as user 0, but", func(d *dump) {
			restrict(d, func(*creds.CredsEntry) {})
			d.agreed.User.UID = 1000
		}},
	}
}

func hostileNamespaces() []hostile {
	shares := func(name, says string, how func(its, node *core.TaskKobjIdsEntry)) hostile {
		return hostile{name, says, func(d *dump) {
			var node *core.TaskKobjIdsEntry
			change(d, "inventory.img", &inventory.InventoryEntry{},
				func(_ int, i *inventory.InventoryEntry) bool {
					node = proto.CloneOf(i.RootIds)
					return true
				})
			change(d, "ids-7.img", &core.TaskKobjIdsEntry{}, func(_ int, its *core.TaskKobjIdsEntry) bool {
				how(its, node)
				return true
			})
		}}
	}
	return []hostile{
		shares("mounts of the node", "process 7: it would be in the node's mount namespace",
			func(i, n *core.TaskKobjIdsEntry) { i.MntNsId = n.MntNsId }),
		shares("processes of the node", "node's pid namespace",
			func(i, n *core.TaskKobjIdsEntry) { i.PidNsId = n.PidNsId }),
		shares("ipc of the node", "node's ipc namespace",
			func(i, n *core.TaskKobjIdsEntry) { i.IpcNsId = n.IpcNsId }),
		shares("name of the node", "node's uts namespace",
			func(i, n *core.TaskKobjIdsEntry) { i.UtsNsId = n.UtsNsId }),
		shares("no mounts", "node's mount namespace",
			func(i, n *core.TaskKobjIdsEntry) { n.MntNsId = i.MntNsId; i.MntNsId = proto.Uint32(6) }),
		shares("user namespace", "a user namespace",
			func(i, _ *core.TaskKobjIdsEntry) { i.UserNsId = proto.Uint32(99) }),
		{"network of the node", "node's network namespace", func(d *dump) { d.agreed.NetworkHeld = false }},
		{"no namespaces of the node", "in which namespaces", func(d *dump) {
			change(d, "inventory.img", &inventory.InventoryEntry{},
				func(_ int, i *inventory.InventoryEntry) bool {
					i.RootIds = nil
					return true
				})
		}},
		{"root of the node", "maps user ids", func(d *dump) {
			d.agreed.UIDs = []Extent{{0, 100000, 65536}}
			d.agreed.GIDs = d.agreed.UIDs
			all := &userns.UidGidExtent{First: proto.Uint32(0), LowerFirst: proto.Uint32(0),
				Count: proto.Uint32(65536)}
			own := &userns.UidGidExtent{First: proto.Uint32(0), LowerFirst: proto.Uint32(100000),
				Count: proto.Uint32(65536)}
			d.add("userns-20.img", magicUserns,
				&userns.UsernsEntry{UidMap: []*userns.UidGidExtent{all}, GidMap: []*userns.UidGidExtent{own}})
		}},
		{"a network that comes with it", "already has its network",
			func(d *dump) { d.write("iptables-2.img", []byte("*nat\n")) }},
	}
}

// addedMount adds a mount.
func addedMount(name, says string, how func(m *mnt.MntEntry)) hostile {
	return hostile{name, says, func(d *dump) {
		m := &mnt.MntEntry{
			Fstype: proto.Uint32(fsTmpfs), MntId: proto.Uint32(9000), RootDev: proto.Uint32(900),
			ParentMntId: proto.Uint32(222), Flags: proto.Uint32(0),
			Root: proto.String("/"), Mountpoint: proto.String("/mnt"), Source: proto.String("none"),
			Options: proto.String(""),
		}
		how(m)
		d.add("mountpoints-12.img", magicMounts, m)
	}}
}

// remounted changes an existing mount.
func remounted(name, says, point string, how func(m *mnt.MntEntry)) hostile {
	return hostile{name, says, func(d *dump) {
		found := false
		change(d, "mountpoints-12.img", &mnt.MntEntry{}, func(_ int, m *mnt.MntEntry) bool {
			if m.GetMountpoint() == point {
				found = true
				how(m)
			}
			return true
		})
		if !found {
			d.t.Fatalf("the dump has no mount at %s", point)
		}
	}}
}

func hostileMounts() []hostile {
	const overlay, devtmpfs, binfmt = 17, 3, 4
	outside := func(name, key string, how ...func(m *mnt.MntEntry)) hostile {
		return addedMount(name, "from outside", func(m *mnt.MntEntry) {
			m.ExtKey = proto.String(key)
			for _, h := range how {
				h(m)
			}
		})
	}
	return []hostile{
		outside("root of the node", "/"),
		outside("directory of the node", "/root"),
		outside("found by CRIU", autodetected, func(m *mnt.MntEntry) { m.Source = proto.String("/") }),
		outside("disk of the node", "CRIU:EXTERNAL_DEV"),
		addedMount("named by its root", "this node lacks",
			func(m *mnt.MntEntry) { m.ExtMount, m.Root = proto.Bool(true), proto.String("/") }),
		addedMount("of a plugin", "this node lacks", func(m *mnt.MntEntry) { m.WithPlugin = proto.Bool(true) }),
		addedMount("overlay over the node", "OVERLAYFS", func(m *mnt.MntEntry) {
			m.Fstype, m.Options = proto.Uint32(overlay), proto.String("lowerdir=/:/etc")
		}),
		addedMount("devices of the node", "DEVTMPFS",
			func(m *mnt.MntEntry) { m.Fstype = proto.Uint32(devtmpfs) }),
		addedMount("formats of programs", "BINFMT_MISC",
			func(m *mnt.MntEntry) { m.Fstype = proto.Uint32(binfmt) }),
		addedMount("unknown type", "AUTO",
			func(m *mnt.MntEntry) { m.Fstype, m.Fsname = proto.Uint32(fsAuto), proto.String("ext4") }),
		addedMount("type without a name", "77", func(m *mnt.MntEntry) { m.Fstype = proto.Uint32(77) }),
		addedMount("memory", "TMPFS", func(*mnt.MntEntry) {}),
		addedMount("control groups of the node", "control groups", func(m *mnt.MntEntry) {
			m.Fstype, m.Mountpoint, m.Options = proto.Uint32(fsCgroup), proto.String("/sys/fs/cgroup/memory"),
				proto.String("memory")
		}),
		addedMount("out of the container", "not within the container",
			func(m *mnt.MntEntry) { m.Mountpoint = proto.String("/proc/../../etc") }),
		addedMount("second root", "more than one root",
			func(m *mnt.MntEntry) { m.Mountpoint = proto.String("/") }),
		{"root with other layers", "OVERLAYFS", func(d *dump) {
			d.agreed.Capabilities = AllCapabilities
			var root *mnt.MntEntry
			change(d, "mountpoints-12.img", &mnt.MntEntry{}, func(_ int, m *mnt.MntEntry) bool {
				if m.GetMountpoint() == "/" {
					root = proto.CloneOf(m)
				}
				return true
			})
			root.Mountpoint, root.MntId, root.Options = proto.String("/mnt"), proto.Uint32(9000),
				proto.String("lowerdir=/:/etc")
			d.add("mountpoints-12.img", magicMounts, root)
		}},
		addedMount("not absolute", "not within the container",
			func(m *mnt.MntEntry) { m.Mountpoint = proto.String("etc") }),
		remounted("root of a mount", "not a path within", "/proc/sys",
			func(m *mnt.MntEntry) { m.Root = proto.String("/../../../etc") }),
		remounted("kernel's settings", "read-only", "/sys",
			func(m *mnt.MntEntry) { m.Flags, m.SbFlags = proto.Uint32(0), proto.Uint32(0) }),
		remounted("program of the node", "read-only", "/sbin/docker-init",
			func(m *mnt.MntEntry) { m.Flags = proto.Uint32(0) }),
		{"root that can be written to", "read-only", func(d *dump) { d.agreed.ReadOnlyRoot = true }},
		{"no mounts", "no mounts",
			func(d *dump) { check(d.t, os.Remove(filepath.Join(d.dir, "mountpoints-12.img"))) }},
	}
}

// opened adds an open file.
func opened(name, says string, f *fdinfo.FileEntry) hostile {
	f.Id = proto.Uint32(9000)
	return hostile{name, says, func(d *dump) { d.add("files.img", magicFiles, f) }}
}

func hostileFiles() []hostile {
	owner := &fown.FownEntry{
		Uid: proto.Uint32(0), Euid: proto.Uint32(0), Signum: proto.Uint32(0), PidType: proto.Uint32(0),
		Pid: proto.Uint32(0),
	}
	regular := func(path string, mount int32) *fdinfo.FileEntry {
		return &fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Reg: &regfile.RegFileEntry{
			Id: proto.Uint32(9000), Flags: proto.Uint32(0), Pos: proto.Uint64(0), Fown: owner,
			Name: proto.String(path), MntId: proto.Int32(mount),
		}}
	}
	ghost := func(mode uint32) func(d *dump) {
		return func(d *dump) {
			d.agreed.Capabilities = d.agreed.Capabilities &^ Capabilities([]string{"MKNOD", "NET_RAW"})
			for _, image := range []string{"core-1.img", "core-7.img", "core-23.img"} {
				change(d, image, &core.CoreEntry{}, func(_ int, c *core.CoreEntry) bool {
					own := c.ThreadCore.Creds
					for _, set := range [][]uint32{own.CapEff, own.CapPrm, own.CapInh, own.CapBnd} {
						set[0] &= uint32(d.agreed.Capabilities)
					}
					return true
				})
			}
			d.add("ghost-file-1.img", magicGhost,
				&ghost_file.GhostFileEntry{Uid: proto.Uint32(0), Gid: proto.Uint32(0),
					Mode: proto.Uint32(mode)})
		}
	}
	packet := &fdinfo.FileEntry{Id: proto.Uint32(9000), Type: fdinfo.FdTypes_PACKETSK.Enum(),
		Psk: &packet_sock.PacketSockEntry{}}
	raw := &fdinfo.FileEntry{Id: proto.Uint32(9000), Type: fdinfo.FdTypes_INETSK.Enum(),
		Isk: &sk_inet.InetSkEntry{Type: proto.Uint32(sockRaw)}}
	weak := func(name, says string, f *fdinfo.FileEntry) hostile {
		return hostile{name, says, func(d *dump) {
			ghost(0o100644)(d)
			d.add("files.img", magicFiles, f)
		}}
	}
	return []hostile{
		opened("passwords of the node", "which is not the container's", regular("/etc/shadow", 1)),
		opened("upwards", "does not lead to a file within", regular("/data/../../../etc/shadow", 248)),
		opened("socket of the node", "outside of the container",
			&fdinfo.FileEntry{Type: fdinfo.FdTypes_UNIXSK.Enum(), Usk: &sk_unix.UnixSkEntry{
				Id: proto.Uint32(9000), Ino: proto.Uint32(1), Type: proto.Uint32(1), State: proto.Uint32(1),
				Flags:  proto.Uint32(0),
				Uflags: proto.Uint32(1), Backlog: proto.Uint32(0), Peer: proto.Uint32(0), Fown: owner,
				Opts: &sk_opts.SkOptsEntry{},
				Name: []byte("/run/docker.sock\x00"),
			}}),
		opened("file of a plugin", "this node lacks",
			&fdinfo.FileEntry{Type: fdinfo.FdTypes_EXT.Enum(), Ext: &ext_file.ExtFileEntry{
				Id: proto.Uint32(9000), Fown: owner,
			}}),
		opened("namespace of the node", "namespace (1)",
			&fdinfo.FileEntry{Type: fdinfo.FdTypes_NS.Enum(), Nsf: &ns.NsFileEntry{
				Id: proto.Uint32(9000), NsId: proto.Uint32(1), NsCflag: proto.Uint32(0x20000000),
				Flags: proto.Uint32(0),
			}}),
		weak("packet socket", "CAP_NET_RAW", packet),
		weak("raw socket", "CAP_NET_RAW", raw),
		{"disk that was removed", "CAP_MKNOD", ghost(0o060600)},
	}
}

func hostileForms() []hostile {
	bytesOf := func(name, says, image string, how func(data []byte) []byte) hostile {
		return hostile{name, says, func(d *dump) { d.write(image, how(d.read(image))) }}
	}
	return []hostile{
		bytesOf("cut short", "ends within", "files.img", func(b []byte) []byte { return b[:len(b)-1] }),
		bytesOf("empty", "begins with", "mountpoints-12.img", func([]byte) []byte { return nil }),
		bytesOf("other kind", "begins with", "core-1.img",
			func(b []byte) []byte { return append([]byte{0, 0, 0, 0}, b[4:]...) }),
		bytesOf("two cores", "more than one", "core-1.img",
			func(b []byte) []byte { return append(bytes.Clone(b), b[8:]...) }),
		bytesOf("two inventories", "2 entries", "inventory.img",
			func(b []byte) []byte { return append(bytes.Clone(b), b[4:]...) }),
		bytesOf("field twice", "it is not as CRIU writes it", "core-1.img", func(b []byte) []byte {
			again := append(bytes.Clone(b[12:]), b[12:]...)
			return append(binary.LittleEndian.AppendUint32(bytes.Clone(b[:8]), uint32(len(again))), again...)
		}),
		bytesOf("old version", "version 1", "inventory.img", func(b []byte) []byte {
			return append(bytes.Clone(b[:9]), append([]byte{1}, b[10:]...)...)
		}),
		{"kind that is no more", "none of this kind", func(d *dump) { d.write("creds-1.img", nil) }},
		{"no inventory", "inventory.img",
			func(d *dump) { check(d.t, os.Remove(filepath.Join(d.dir, "inventory.img"))) }},
		{"link in place of an image", "it is a L", func(d *dump) {
			check(d.t, os.Remove(filepath.Join(d.dir, "seccomp.img")))
			check(d.t, os.Symlink("/etc/passwd", filepath.Join(d.dir, "seccomp.img")))
		}},
	}
}
