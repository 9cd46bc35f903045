package network

import (
	"os"
	"testing"

	"github.com/godwit/godwit/internal/network/wireguard"
)

// TestMain makes the test program what the real one is: the process of an encrypted overlay.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == wireguard.Command {
		os.Exit(wireguard.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}
