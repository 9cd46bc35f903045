package contentstore

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	version "github.com/containerd/containerd/api/services/version/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// TestDial: a containerd that was away, for however many calls, is called as soon as it is back.
func TestDial(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	connection, err := Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	client := version.NewVersionClient(connection)
	for range 2 {
		for range 3 { // by itself, a client waits for a second after the first
			if _, err := client.Version(t.Context(),
				&emptypb.Empty{}); status.Code(err) != codes.Unavailable {
				t.Fatalf("nobody is there, and it says %v", err)
			}
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		version.RegisterVersionServer(server, version.UnimplementedVersionServer{})
		over := make(chan error, 1)
		go func() { over <- server.Serve(listener) }()
		if _, err := client.Version(t.Context(), &emptypb.Empty{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("it is there, and the client says %v", err)
		}
		server.Stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(socket); err != nil {
			t.Fatal(err)
		}
	}
}
