package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors that are the caller's wrap one of these. The code of the answer says which, and its text leaves
// these words out.
var (
	ErrInvalid = errors.New("invalid request") // it makes no sense, whatever there is
	ErrRefused = errors.New("refused")         // it makes no sense as things are
)

// Plain makes the text of an error that came from gRPC or from here.
func Plain(err error) string {
	if err == nil {
		return "it ended"
	}
	s, ok := status.FromError(err)
	switch {
	case !ok:
		return err.Error()
	case s.Code() == codes.DeadlineExceeded, s.Code() == codes.Canceled &&
		s.Message() != context.Canceled.Error():
		return "it does not answer" // for so long that the call, or the connection under it, was given up
	}
	return s.Message()
}
