package network

import (
	"os"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// TestMain lets the test program act as the real one: as the process of an encrypted overlay.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == wireguard.Command {
		os.Exit(wireguard.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// TestNetwork: each way has a row, and ways that work on every kernel have figures.
func TestNetwork(t *testing.T) {
	result, err := Run(t.Context(), Config{Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range Ways() {
		if !slices.ContainsFunc(result.Rows, func(r results.Row) bool { return r.Way == way }) {
			t.Errorf("%s has no row", way)
		}
	}
	for _, way := range []string{"vxlan", "wireguard by a process"} {
		row := results.Find(result.Rows, "one TCP connection", "veth", way, metricCarried)
		if row == nil || *row.Median <= 0 {
			t.Errorf("%s: %+v", way, result.Rows)
		}
	}
}
