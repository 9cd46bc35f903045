package kernel

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPeerGroups uses a socket pair, both ends of which belong to this process.
func TestPeerGroups(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	got, err := PeerGroups(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	var want []uint32
	for _, group := range own {
		want = append(want, uint32(group))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
	if _, err := PeerGroups(-1); err == nil {
		t.Error("no error for a descriptor that is none")
	}
}
