package rpc

import (
	"log/slog"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestPanicIsAnError(t *testing.T) {
	call := func() (err error) {
		defer recovered(slog.New(slog.DiscardHandler), "/godwit.Peer/Tell", &err)
		panic("unexpected")
	}
	if err := call(); status.Code(err) != codes.Internal {
		t.Errorf("error %v, want internal", err)
	}
}
