package containerd

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

func conflistOf(t *testing.T, plugins string) *libcni.NetworkConfigList {
	t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"0.4.0","name":"birds","plugins":[` +
		plugins + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestReadConflist checks that only networks that another node makes in the same way are accepted, and that
// the refusal of others gives the reason.
func TestReadConflist(t *testing.T) {
	for plugins, want := range map[string]string{
		`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.4.0.0/24"}}`:                                         "",
		`{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.4.0.0/24"}]]}},{"type":"firewall"}`:      "",
		`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.4.0.0/24"}},{"type":"portmap"},{"type":"tuning"}`:    "",
		`{"type":"macvlan","ipam":{"type":"host-local","subnet":"10.4.0.0/24"}}`:                                        "plugin macvlan",
		`{"type":"ipvlan","ipam":{"type":"dhcp"}}`:                                                                      "plugin ipvlan",
		`{"type":"bridge","ipam":{"type":"dhcp"}}`:                                                                      "plugin dhcp",
		`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.4.0.0/24"}},{"type":"bandwidth"}`:                    "plugin bandwidth",
		`{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.4.0.0/24"}],[{"subnet":"fd00::/64"}]]}}`: "sets of ranges",
		`{"type":"bridge","vlan":3,"ipam":{"type":"host-local","subnet":"10.4.0.0/24"}}`:                                "VLAN",
		`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.4.0.0/240"}}`:                                        "its list of plugins",
	} {
		_, found := readConflist(conflistOf(t, plugins))
		if want == "" && len(found) > 0 || want != "" &&
			(len(found) != 1 || !strings.Contains(found[0].Why, want)) {
			t.Errorf("%s: %+v, want %q", plugins, found, want)
		}
	}
}

// TestAddressHere checks that an address can come to a network with the same subnet if nobody has the
// address there.
func TestAddressHere(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "birds"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "birds", "10.4.0.3"), []byte("default-taker\r\neth0"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ subnet, address, want string }{
		{"10.4.0.0/24", "10.4.0.2", ""}, {"10.4.0.0/24", "10.4.0.3", "default-taker"},
		{"10.4.0.0/24", "10.4.0.1", "its bridge"},
		{"10.4.0.0/16", "10.4.0.2", "10.4.0.0/24"}, {"10.5.0.0/24", "10.4.0.2", "10.4.0.0/24"},
	} {
		read, found := readConflist(conflistOf(t, `{"type":"bridge","ipam":{"type":"host-local","dataDir":"`+
			dir+`","subnet":"`+c.subnet+`","rangeStart":"10.4.0.100"}}`))
		own := connected()
		own.Address = netip.MustParseAddr(c.address)
		further, err := read.obstacles(own)
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, one := range append(found, further...) {
			if !strings.HasPrefix(one.What, "plugins of CNI") { // which may be missing here
				said += one.Why
			}
		}
		if (said == "") != (c.want == "") || !strings.Contains(said, c.want) {
			t.Errorf("%s in %s: %q, want %q", c.address, c.subnet, said, c.want)
		}
	}
}

// TestKeepTurn checks that host-local continues with its own addresses after a requested address, even if
// the request failed.
func TestKeepTurn(t *testing.T) {
	dir := t.TempDir()
	read, _ := readConflist(conflistOf(t, `{"type":"bridge","ipam":{"type":"host-local","dataDir":"`+dir+
		`","subnet":"10.4.0.0/24"}}`))
	turn := filepath.Join(dir, "birds", "last_reserved_ip.0")
	if err := os.MkdirAll(filepath.Dir(turn), 0o700); err != nil {
		t.Fatal(err)
	}
	reserve := func(address string) error { return os.WriteFile(turn, []byte(address), 0o600) }
	if err := read.keepTurn(func() error { return reserve("10.4.0.2") }); err != nil { // the first request
		t.Fatal(err)
	}
	fails := errors.New("a plugin fails")
	if err := read.keepTurn(func() error { return errors.Join(reserve("10.4.0.99"), fails) }); !errors.Is(err,
		fails) {
		t.Error(err)
	}
	if last, err := os.ReadFile(turn); err != nil || string(last) != "10.4.0.2" {
		t.Errorf("it goes on from %s: %v", last, err)
	}
}

// TestWidened checks that an arriving container keeps its address, whichever part of the subnet this node
// assigns.
func TestWidened(t *testing.T) {
	for _, ipam := range []string{
		`"subnet":"10.4.0.0/24","rangeStart":"10.4.0.100","rangeEnd":"10.4.0.199"`,
		`"ranges":[[{"subnet":"10.4.0.0/24","rangeStart":"10.4.0.100"}],[{"subnet":"10.5.0.0/24","rangeEnd":"10.5.0.9"}]]`,
	} {
		read, _ := readConflist(conflistOf(t, `{"type":"bridge","mtu":1400,"ipam":{"type":"host-local",`+
			ipam+`}},{"type":"firewall"}`))
		list, err := read.widened()
		if err != nil {
			t.Fatal(err)
		}
		told := string(list.Plugins[0].Bytes)
		if strings.Contains(told, "rangeStart") || strings.Contains(told, "rangeEnd") ||
			!strings.Contains(told, "10.4.0.0/24") || !strings.Contains(told, "1400") ||
			len(list.Plugins) != 2 {
			t.Errorf("%s becomes %s", ipam, told)
		}
	}
}

// TestRoutedList checks that setup's list describes a network that can move, and of which each node assigns
// its own part.
func TestRoutedList(t *testing.T) {
	data, err := routedList("birds", netip.MustParsePrefix("10.60.0.0/16"),
		netip.MustParsePrefix("10.60.2.0/24"), 1400)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "birds.conflist")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := readRouted(path)
	if err != nil || made.Name != "birds" || made.Subnet != netip.MustParsePrefix("10.60.0.0/16") ||
		len(made.Device) == 0 || len(made.Device) > 15 {
		t.Errorf("%+v: %v", made, err)
	}
	for _, want := range []string{`"rangeStart": "10.60.2.2"`, `"rangeEnd": "10.60.2.254"`,
		`"gateway": "10.60.2.1"`, `"mtu": 1400`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s is not in %s", want, data)
		}
	}
	if isRouted(conflistOf(t, `{"type":"bridge"}`)) {
		t.Error("nodes route what nobody has asked for")
	}
}
