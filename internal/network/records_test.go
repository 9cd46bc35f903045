package network

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/godwit/godwit/internal/network/pool"
)

// TestRecords checks that records survive a restart once they are saved.
func TestRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bridged.json")
	r := newRecords(path)
	one, other := netip.MustParseAddr("172.30.0.2"), netip.MustParseAddr("172.30.0.3")
	if all, err := r.read(); err != nil || len(all) != 0 {
		t.Errorf("without a file: %+v, %v", all, err)
	}
	must(t, r.note(bridged{Container: "one", Address: one, Via: 2, closing: true}))
	r.put(bridged{Container: "other", Address: other})
	if all, err := r.read(); err != nil || len(all) != 1 || all[0].Container != "one" || all[0].closing {
		t.Errorf("noted: %+v, %v", all, err)
	}
	must(t, r.save())
	if all, err := r.read(); err != nil || len(all) != 2 || r.count() != 2 {
		t.Errorf("saved: %+v, %v", all, err)
	}
	r.drop(one)
	if _, is := r.at(one); is || len(r.list()) != 1 {
		t.Errorf("dropped: %+v", r.list())
	}
	if r.clear(); r.count() != 0 {
		t.Errorf("cleared: %+v", r.list())
	}
}

// TestRecordNotSaved checks that a record that cannot be saved changes nothing.
func TestRecordNotSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bridged.json")
	r, ip := newRecords(path), netip.MustParseAddr("172.30.0.2")
	must(t, os.Mkdir(path, 0o700))
	if r.note(bridged{Container: "one", Address: ip}) == nil {
		t.Fatal("it is written into a directory")
	}
	if _, is := r.at(ip); is {
		t.Error("it is remembered")
	}
	r.put(bridged{Container: "one", Address: ip})
	if r.note(bridged{Container: "two", Address: ip}) == nil {
		t.Fatal("it is written into a directory")
	}
	if was, _ := r.at(ip); was.Container != "one" {
		t.Errorf("the former record is %+v", was)
	}
	must(t, os.Remove(path))
	ports := slices.Repeat([]Published{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}}, maxPublished)
	for at := netip.MustParseAddr("172.31.0.1"); r.count() < 100; at = at.Next() { // some 50 KB each
		r.put(bridged{Container: "other", Address: at, Via: 2, Ports: ports})
	}
	if err := r.save(); !errors.Is(err, ErrInvalid) {
		t.Errorf("a file that is too large: %v", err)
	}
}

// TestRecordsCopied checks that who has a record cannot change that of others, and that records can be read
// while they change.
func TestRecordsCopied(t *testing.T) {
	r, ip := newRecords(filepath.Join(t.TempDir(), "bridged.json")), netip.MustParseAddr("172.30.0.2")
	r.put(bridged{Container: "one", Address: ip, Origin: 3, Returning: true, Before: 2})
	was, _ := r.at(ip)
	was.undone()
	if was.Origin != 2 || was.Returning {
		t.Errorf("undone: %+v", was)
	}
	if now, _ := r.at(ip); now.Origin != 3 {
		t.Errorf("changed: %+v", now)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				r.put(bridged{Container: "one", Address: ip})
				_ = r.list()
			}
		})
	}
	all.Wait()
}

// TestGuests checks which addresses of a routed network belong to other nodes, and which networks are
// refused.
func TestGuests(t *testing.T) {
	subnet := netip.MustParsePrefix("10.89.0.0/16")
	routed := &routedNetworks{
		node: &node{config: Config{Pool: netip.MustParsePrefix("10.57.0.0/16")}, pool: pool.Pool{Number: 1}},
		list: []RoutedNetwork{{Device: "br0", Subnet: subnet}},
	}
	for text, want := range map[string]bool{"10.89.1.2": false, "10.89.2.2": true, "172.30.0.2": false} {
		if got := routed.isGuest(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is a guest: %t", text, got)
		}
	}
	must(t, routed.checkRouted(routed.list[0]))
	for _, bad := range []string{"10.57.0.0/16", "10.0.0.0/8", "10.89.0.0/30"} {
		if routed.checkRouted(RoutedNetwork{Device: "br0", Subnet: netip.MustParsePrefix(bad)}) == nil {
			t.Errorf("%s is routed", bad)
		}
	}
}

// TestKnown checks which addresses may be routed: those of the pool, and those of containers on bridges.
func TestKnown(t *testing.T) {
	one, other := netip.MustParseAddr("172.30.0.2"), netip.MustParseAddr("172.30.0.3")
	p := &plugs{
		node:    &node{pool: pool.Pool{Prefix: netip.MustParsePrefix("10.57.0.0/16"), Number: 1}},
		records: newRecords(""),
	}
	p.records.put(bridged{Container: "one", Address: one})
	must(t, p.known(one))
	must(t, p.known(netip.MustParseAddr("10.57.3.4")))
	if p.known(other) == nil {
		t.Error("any address is known")
	}
}

// TestTablesOfHolds checks that devices of addresses that differ in their first byte only have different
// tables.
func TestTablesOfHolds(t *testing.T) {
	devices := &holdDevices{tables: map[int]*tun{}}
	var all []*tun
	for _, text := range []string{"172.20.0.2", "10.20.0.2", "192.20.0.2"} {
		one := &tun{devices: devices, ip: netip.MustParseAddr(text)}
		devices.takeTable(one)
		all = append(all, one)
	}
	for i, one := range all {
		if devices.tables[one.table] != one || i > 0 && one.table != all[i-1].table+1 {
			t.Errorf("%s has table %d", one.ip, one.table)
		}
	}
}
