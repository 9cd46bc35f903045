package idle

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestIdlePeersJoin: the simulated nodes become members of the cluster, and stop when their input ends.
func TestIdlePeersJoin(t *testing.T) {
	id, _, err := identity.Init(identity.InitOptions{
		State: t.TempDir(), Name: "a", Address: "127.0.0.1", Pool: netip.MustParsePrefix("10.88.0.0/16"),
	})
	if err != nil {
		t.Fatal(err)
	}
	joined := make(chan identity.Node, 2)
	list := func() []identity.Node { return []identity.Node{id.Node} }
	server, err := identity.NewServer(id, list, func(n identity.Node) { joined <- n })
	if err != nil {
		t.Fatal(err)
	}
	listener, err := wire.Listen(t.Context(), "127.0.0.1:0", wire.ListenOptions{Identity: id, Server: server})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	config := idlePeersConfig{Dir: t.TempDir(), Server: "a", Address: listener.Addr().String(), Containers: 3}
	for n := range 2 {
		authority, err := id.Authority()
		if err != nil {
			t.Fatal(err)
		}
		token, err := authority.IssueToken(0, "")
		if err != nil {
			t.Fatal(err)
		}
		config.Tokens = append(config.Tokens, token.String())
		config.Addresses = append(config.Addresses, fmt.Sprintf("127.18.1.%d", n+1))
	}
	in, configured := io.Pipe()
	counted, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Peers(t.Context(), in, out) }()
	if err := json.NewEncoder(configured).Encode(config); err != nil {
		t.Fatal(err)
	}
	var count idleCount
	if err := json.NewDecoder(counted).Decode(&count); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if node := <-joined; node.Name != fmt.Sprintf("idle-%d", n+1) {
			t.Errorf("node %d is %s", n, node.Name)
		}
	}
	configured.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestIdleSamples: the usage between two looks is scaled to a second.
func TestIdleSamples(t *testing.T) {
	for usedBy(fmt.Sprintf("/proc/%d", os.Getpid())) == 0 { // use a hundredth of a second
		_ = json.Valid(make([]byte, 1<<20))
	}
	before := idleLook{at: time.Unix(0, 0), agent: 1, docker: 2, count: idleCount{Sent: 5, Bytes: 100}}
	now := idleLook{
		at: time.Unix(10, 0), agent: 1.5, docker: 2, memory: 7,
		count: idleCount{Sent: 10, Answered: 3, Failed: 2, Bytes: 900},
	}
	want := map[string]float64{
		metricAgentBusy: 0.05, metricDeviceBusy: 0, metricDockerBusy: 0, metricAgentHeld: 7,
		metricUnanswered: 0.2, metricHello: 100,
	}
	for _, m := range now.since(before) {
		if m.Value != want[m.Metric] {
			t.Errorf("%s: %g, want %g", m.Metric, m.Value, want[m.Metric])
		}
		delete(want, m.Metric)
	}
	if len(want) > 0 {
		t.Errorf("not measured: %v", want)
	}
}
