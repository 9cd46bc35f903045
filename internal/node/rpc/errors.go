package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/wire"
)

// Error maps errors to gRPC's once, at the edge. The text is what users see.
func Error(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code, text := codes.Unknown, err.Error()
	switch {
	case errors.Is(err, engine.ErrNotFound), errors.Is(err, engine.ErrNoVolume):
		code = codes.NotFound
	case errors.Is(err, engine.ErrNameTaken):
		code = codes.AlreadyExists
	case errors.Is(err, engine.ErrNotRunning), errors.Is(err, engine.ErrBusy):
		code = codes.FailedPrecondition
	case durable.Full(err):
		code = codes.ResourceExhausted
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, api.ErrInvalid):
		// the code says so
		code, text = codes.InvalidArgument, strings.Replace(text, api.ErrInvalid.Error()+": ", "", 1)
	case errors.Is(err, engine.ErrInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, api.ErrRefused):
		code, text = codes.FailedPrecondition, strings.Replace(text, api.ErrRefused.Error()+": ", "", 1)
	}
	return status.Error(code, text)
}

// MarshalEach makes the documents of a reply that lists something.
func MarshalEach[T any](all []T) ([][]byte, error) {
	var documents [][]byte
	for _, one := range all {
		document, err := json.Marshal(one)
		if err != nil {
			return nil, err
		}
		documents = append(documents, document)
	}
	return documents, nil
}

// Caller is the node that makes a call.
func Caller(ctx context.Context) (string, error) {
	peer, ok := wire.PeerFrom(ctx)
	if !ok {
		return "", status.Error(codes.Unauthenticated, "the caller is no node of this cluster")
	}
	return peer.Name, nil
}
