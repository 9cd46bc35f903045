package dump

import (
	"errors"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestWhole checks that an interrupted list is requested again, and that any other error is returned at
// once.
func TestWhole(t *testing.T) {
	for _, c := range []struct {
		interrupted, tries int
		then, want         error
	}{
		{0, 1, nil, nil},
		{3, 4, nil, nil},
		{1, 2, unix.EPERM, unix.EPERM},
		{maxTries, maxTries, nil, netlink.ErrDumpInterrupted},
	} {
		tries := 0
		all, err := Whole(func() ([]int, error) {
			if tries++; tries <= c.interrupted {
				return nil, netlink.ErrDumpInterrupted
			}
			return []int{tries}, c.then
		})
		if !errors.Is(err, c.want) || tries != c.tries || err == nil && len(all) != 1 {
			t.Errorf("%d times interrupted: %v, %v after %d tries", c.interrupted, all, err, tries)
		}
	}
}

// TestWholeWhileDevicesChange checks that a long list of devices is complete while other devices come and
// go.
func TestWholeWhileDevicesChange(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	changing, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer changing.Close()
	const devices = 100
	for i := range devices {
		if err := handle.LinkAdd(bridge("stays" + strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	var stop atomic.Bool
	changed := make(chan error, 1)
	go func() {
		var err error
		for err == nil && !stop.Load() {
			err = errors.Join(changing.LinkAdd(bridge("comes")), changing.LinkDel(bridge("comes")))
		}
		changed <- err
	}()
	interrupted := 0
	for round := 0; round < 200 && interrupted < 5; round++ {
		all, err := Whole(func() ([]netlink.Link, error) {
			all, err := handle.LinkList()
			if errors.Is(err, netlink.ErrDumpInterrupted) {
				interrupted++
			}
			return all, err
		})
		if err != nil || len(all) < devices {
			t.Errorf("%d devices: %v", len(all), err)
		}
	}
	stop.Store(true)
	if err := <-changed; err != nil {
		t.Error(err)
	}
	t.Logf("%d lists were interrupted", interrupted)
}

func bridge(name string) netlink.Link {
	return &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
}
