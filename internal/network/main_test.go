package network

import (
	"os"
	"testing"

	"github.com/godwit/godwit/internal/network/wireguard"
)

// TestMain lets the test program act as the process of an encrypted overlay, as the real program does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == wireguard.Command {
		os.Exit(wireguard.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}
