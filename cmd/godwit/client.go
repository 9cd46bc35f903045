package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
)

// withAgent runs a command's body with a client of this node's agent.
func withAgent(cmd *cobra.Command, body func(api.AgentClient) error) error {
	if cmd.Flags().Changed("controller") {
		return cli.Usage(fmt.Errorf("%q asks the agent of this node and does not work with --controller: "+
			"run the command at the node", cmd.CommandPath()))
	}
	socket, err := cmd.Flags().GetString("socket")
	if err != nil {
		return err
	}
	if err := checkSocket(socket); err != nil {
		return err
	}
	connection, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to the agent at %s: %w", socket, err)
	}
	defer connection.Close()
	return body(api.NewAgentClient(connection))
}

// checkSocket distinguishes two errors that gRPC would report alike: no agent, and no permission.
func checkSocket(path string) error {
	file, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("no agent runs on this node (there is no %s): start one with \"godwit agent\", "+
			"or name its socket with --socket", path)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("no permission to reach the agent at %s: be root or a member of the socket's group",
			path)
	case err != nil:
		return fmt.Errorf("agent socket: %w", err)
	case file.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s is not a socket: name the agent's with --socket", path)
	}
	return nil
}

// plainError returns the message of an error that came over gRPC.
func plainError(err error) string {
	s, ok := status.FromError(err)
	if !ok {
		return plainText(err.Error())
	}
	if s.Code() == codes.Unavailable {
		return "the agent does not answer: " + plainText(s.Message())
	}
	return plainText(s.Message())
}

var (
	grpcCode = regexp.MustCompile(`rpc error: code = \w+ desc = `)
	grpcDial = regexp.MustCompile(
		`connection error: desc = "(?:transport: )?(?:Error while dialing: )?([^"]*)"`)
)

// plainText removes details that only gRPC's authors need.
func plainText(text string) string {
	return grpcDial.ReplaceAllString(grpcCode.ReplaceAllString(text, ""), "$1")
}

// printRawJSON prints JSON documents, indented.
func printRawJSON(w io.Writer, document []byte) error {
	return cli.PrintJSON(w, json.RawMessage(document))
}
