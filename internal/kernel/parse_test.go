package kernel

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseMount(t *testing.T) {
	m,
		ok := ParseMount(
		`36 35 98:0 /root /mnt\040a rw,noatime master:1 - ext4 /dev/x\011y rw,errors=continue`)
	want := Mount{ID: "36", Parent: "35", Device: "98:0", Root: "/root", Point: "/mnt a", Type: "ext4",
		Source: "/dev/x\ty", Options: "rw,errors=continue", Flags: "rw,noatime"}
	if !ok || m != want {
		t.Errorf("%+v, want %+v", m, want)
	}
}

func TestHierarchyDir(t *testing.T) {
	h := Hierarchy{mount: "/cg", Root: "/node"}
	if d, ok := h.Dir("/node/a"); !ok || d != "/cg/a" {
		t.Errorf("%q, %v", d, ok)
	}
	if d, ok := h.Dir("/other"); ok {
		t.Errorf("a group that the mount does not show is at %q", d)
	}
}

// TestUnixSockets finds a connection of this process by both ends.
func TestUnixSockets(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(pair[0]); _ = unix.Close(pair[1]) })
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	sockets, err := UnixSockets(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	peers, waiting := map[uint32]uint32{}, 0
	for _, s := range sockets {
		peers[s.Inode] = s.Peer
		waiting += len(s.Waiting)
	}
	a, b := inode(t, pair[0]), inode(t, pair[1])
	if peers[a] != b || peers[b] != a {
		t.Errorf("peers of %d and %d: %d and %d", a, b, peers[a], peers[b])
	}
	if waiting == 0 {
		t.Error("the connection that is not accepted was not found")
	}
}

func inode(t *testing.T, fd int) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return uint32(st.Ino)
}

func TestNetlinkGroups(t *testing.T) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	for _, g := range []int{1, 33} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			t.Fatal(err)
		}
	}
	groups, err := NetlinkGroups(fd)
	if err != nil || len(groups) != 2 || groups[0] != 1 || groups[1] != 33 {
		t.Errorf("groups %v, %v, want 1 and 33", groups, err)
	}
}

func FuzzParseMount(f *testing.F) {
	f.Add(`36 35 98:0 / /mnt\040a rw - cgroup2 x rw`)
	f.Add(`36 35 98:0 / / rw - cgroup x rw,cpu,cpuacct\`)
	f.Fuzz(func(t *testing.T, line string) {
		m, ok := ParseMount(line)
		if ok && m.Type == "" {
			t.Error("a mount without a type")
		}
		if h, ok := cgroupHierarchy(m); ok {
			if d, ok := h.Dir("/a"); ok && strings.Contains(filepath.Clean(d), "..") &&
				!strings.Contains(line, "..") {
				t.Errorf("directory %q", d)
			}
		}
	})
}

func FuzzParseGroups(f *testing.F) {
	f.Add("0::/a b\n9:name=systemd:/x (deleted)\n1:cpu,cpuacct:/\n")
	f.Fuzz(func(t *testing.T, text string) {
		for controllers, group := range parseGroups(text) {
			if !strings.HasPrefix(group, "/") {
				t.Errorf("%q: %q", controllers, group)
			}
		}
	})
}

func FuzzParseProcess(f *testing.F) {
	f.Add("7 (a b) R 5 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 99 0", "NSpid:\t7\t1\n")
	f.Fuzz(func(_ *testing.T, stat, status string) {
		_, _ = parseProcess(7, stat, status) // it must not panic
	})
}

func FuzzParseUnixSockets(f *testing.F) {
	b := make([]byte, 16+16+8)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[32:], 8)
	binary.NativeEndian.PutUint16(b[34:], unixDiagPeer)
	f.Add(b)
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _, _ = parseUnixSockets(b) // neither may panic
		_, _ = diagDone(b)
	})
}

func TestParsePrivateUse(t *testing.T) {
	rollup := "5588-7fff ---p 00000000 00:00 0  [rollup]\nRss:  1836 kB\nPss_Anon:  112 kB\nAnonymous:  " +
		"448 kB\nSwap:  8 kB\nSwapPss:  4 kB\n"
	if use := parsePrivateUse(rollup); use.Whole != 456<<10 || use.Parts != 116<<10 {
		t.Errorf("%+v", use)
	}
	if use := parsePrivateUse("Anonymous: 448 kB\n"); use.Parts != 448<<10 {
		t.Errorf("of a kernel that does not tell: %+v", use)
	}
}

func TestParseFaults(t *testing.T) {
	faults, err := parseFaults("12 (a ) b) S 1 12 12 0 -1 4194304 100 200 3 400 5 6 7 8 20 0 1 0 99")
	if err != nil || faults != 103 {
		t.Errorf("%d, %v, want 103", faults, err)
	}
	if _, err := parseFaults("12 (a) S 1"); err == nil {
		t.Error("a line that is cut off is taken")
	}
}
