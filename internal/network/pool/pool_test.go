package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// testPool is the pool as node 1 sees it.
var testPool = Pool{Prefix: netip.MustParsePrefix("10.88.0.0/16"), Number: 1}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// leasing returns the leases of a file.
func leasing(t *testing.T, path string) *Leases {
	t.Helper()
	l, err := OpenLeases(path, testPool)
	must(t, err)
	return l
}

func TestHome(t *testing.T) {
	for text, want := range map[string]int{
		"10.88.1.2": 1, "10.88.255.254": 255, "10.88.1.1": 0, "10.88.1.0": 0, "10.88.1.255": 0,
		"10.88.0.5": 0,
		"10.89.1.2": 0, "::1": 0, "::ffff:10.88.1.2": 0,
	} {
		got, err := testPool.Home(netip.MustParseAddr(text))
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("home of %s: %d, %v; want %d", text, got, err, want)
		}
	}
	if _, err := testPool.Home(netip.Addr{}); err == nil {
		t.Error("no address has a home")
	}
}

func TestLeasesLast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "addresses.json")
	l := leasing(t, path)
	one, err := l.Lease("one", 1450)
	must(t, err)
	two, err := l.Lease("two", 1450)
	must(t, err)
	must(t, l.Release("one"))
	must(t, l.Release("one"))

	again := leasing(t, path)
	if same, err := again.Lease("two", 1450); err != nil || same != two {
		t.Errorf("lease of two is %+v, %v; was %+v", same, err, two)
	}
	three, err := again.Lease("three", 1450)
	must(t, err)
	if three.IP == one.IP || three.IP == two.IP || three.MAC == two.MAC {
		t.Errorf("three got %+v; one had %+v and two has %+v", three, one, two)
	}
	if list := again.List(); len(list) != 2 || list[0].Container != "two" || list[1].Container != "three" {
		t.Errorf("leases are %+v", list)
	}
}

func TestLeasesRunOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "addresses.json")
	l := leasing(t, path)
	for i := 2; i < 255; i++ {
		ip := netip.AddrFrom4([4]byte{10, 88, 1, byte(i)})
		l.held[ip] = Lease{Container: fmt.Sprint("c", i), Address: ip, MAC: ContainerMAC(ip).String(),
			MTU: 1450}
	}
	if _, err := l.Lease("more", 1450); !errors.Is(err, ErrNoAddress) {
		t.Errorf("lease number 254: %v", err)
	}
	must(t, l.Release("c99"))
	if address, err := l.Lease("more", 1450); err != nil || address.IP.String() != "10.88.1.99" {
		t.Errorf("lease of the only free address: %+v, %v", address, err)
	}
}

func TestLeaseThatCannotBeWrittenIsNotGiven(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	l := leasing(t, filepath.Join(state, "addresses.json"))
	must(t, os.WriteFile(state, []byte("in the way"), 0o600))
	if _, err := l.Lease("one", 1450); err == nil || len(l.List()) != 0 {
		t.Errorf("lease: %v, %+v", err, l.List())
	}
	must(t, os.Remove(state))
	if _, err := l.Lease("one", 1450); err != nil {
		t.Error(err)
	}
}

func FuzzLeaseFile(f *testing.F) {
	for _, seed := range []string{
		`{"next":5,"leases":[{"container":"one","address":"10.88.1.2",` +
			`"mac":"0e:67:0a:58:01:02","mtu":1450,"since":"2025-01-01T00:00:00Z"}]}`,
		`{}`, `{"next":-1}`,
		`{"leases":[{"container":"../x","address":"10.88.1.2","mac":"0e:67:0a:58:01:02","mtu":1450}]}`,
		`{"leases":[{"container":"x","address":"10.88.2.2","mac":"0e:67:0a:58:01:02","mtu":1450}]}`, `[`,
		"null",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l := &Leases{pool: testPool, next: 2, held: map[netip.Addr]Lease{}}
		if l.decode(data) != nil {
			return
		}
		if l.next < 2 || l.next > 254 {
			t.Errorf("next is %d", l.next)
		}
		for ip, lease := range l.held {
			if home, err := testPool.Home(ip); err != nil || home != 1 ||
				!ValidID.MatchString(lease.Container) {
				t.Errorf("accepted %+v", lease)
			}
		}
	})
}
