package criu

import (
	"context"
	"fmt"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"
)

// Warm lets CRIU find out what the kernel can do, and keep it in /run/criu.kdat: otherwise the first dump after boot does
// that, which takes 30 to 80 ms of its freeze. Without a tmpfs at /run CRIU keeps nothing, and every dump pays.
func (t Tool) Warm(ctx context.Context) error {
	s, err := startSession(t.Path, sessionFiles{})
	if err != nil {
		return err
	}
	defer s.kill()
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	stop := s.interruptOn(ctx)
	defer stop()
	// Any question about a feature makes CRIU probe all of them (cr-service.c, handle_feature_check).
	request := &rpc.CriuReq{
		Type: rpc.CriuReqType_FEATURE_CHECK.Enum(), Features: &rpc.CriuFeatures{PidfdStore: proto.Bool(true)},
	}
	if err := s.send(request, nil); err != nil {
		return fmt.Errorf("warm %s: %w", t.Path, err)
	}
	var answer rpc.CriuResp
	if _, err := s.receive(&answer); err != nil {
		return fmt.Errorf("warm %s: %w", t.Path, errEnded(ctx, err))
	}
	return nil // What it can do does not matter here.
}
