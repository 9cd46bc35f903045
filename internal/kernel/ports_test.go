package kernel

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestReadPorts(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	datagrams, err := net.ListenPacket("udp6", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	client, err := net.Dial("udp4", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ports, err := ReadPorts(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []Port{
		{"tcp", uint16(listener.Addr().(*net.TCPAddr).Port)},
		{"udp", uint16(datagrams.LocalAddr().(*net.UDPAddr).Port)},
	} {
		if !slices.Contains(ports, want) {
			t.Errorf("%v is missing in %v", want, ports)
		}
	}
	if asks := (Port{"udp", uint16(client.LocalAddr().(*net.UDPAddr).Port)}); slices.Contains(ports, asks) {
		t.Errorf("who asks counts as a service: %v", asks)
	}
}

func TestParsePorts(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0000000000000000 100 0 0 10 0
   1: 0100007F:18EC 0100007F:ABCD 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0000000000000000 100 0 0 10 0
   2: 00000000:0000 00000000:0000 0A
   3: 00000000:1FFFF 00000000:0000 0A
   4: x 0A
`
	ports, err := parsePorts(strings.NewReader(table), "tcp")
	if want := []Port{{"tcp", 6379}}; err != nil || !slices.Equal(ports, want) {
		t.Errorf("%v, %v, want %v", ports, err, want)
	}
}
