package oci

import (
	"net"
	"os"
	"testing"
)

func TestParseEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F90": "127.0.0.1:8080", "0200000A:0016": "10.0.0.2:22",
		"B80D01200000000000000000067ABBCC:0050": "[2001:db8::ccbb:7a06]:80",
	} {
		if got, ok := parseEndpoint(text); !ok || got.String() != want {
			t.Errorf("%s: %s, %v, want %s", text, got, ok, want)
		}
	}
	for _, text := range []string{"", ":", "01:02", "0100007F", "0100007F:12345", "xx00007F:0001"} {
		if got, ok := parseEndpoint(text); ok {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// TestHostConnections checks that connections within the node, and those of other processes, are accepted.
func TestHostConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if found, err := hostConnections(os.Getpid(), []int{os.Getpid()}); err != nil || len(found) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}
