package main

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/cli"
)

// Exit codes beside those of the package cli, as documented in the README.
const (
	exitInDoubt = 3
	exitAlarm   = 4 // ps: something needs an operator's attention
)

// explain returns an error's text without gRPC's additions, and its exit code.
func explain(err error) (text string, code int) {
	if status.Code(err) == codes.InvalidArgument { // the agent refused a value that the user gave
		return plainError(err), cli.ExitUsage
	}
	return plainError(err), cli.ExitError
}
