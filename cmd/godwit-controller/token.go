package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/controller"
)

func newTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create tokens for nodes and users",
		Long: `Token creates a secret for a node or a user. It also proves to them that they talk to the right
controller. The controller keeps only a hash. Run token as root on the machine of the controller that leads.`,
	}
	cmd.AddCommand(newNodeTokenCommand(), newUserTokenCommand())
	return cmd
}

func newNodeTokenCommand() *cobra.Command {
	request := &api.CreateTokenRequest{Kind: "node"}
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:     "node",
		Short:   "Create a token with which one node can join, once",
		Example: "  godwit-controller token node\n  godwit-controller token node --node a --ttl 1h",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request.TtlSeconds = ttl.Seconds()
			return createToken(cmd, request)
		},
	}
	cmd.Flags().StringVar(&request.Name, "node", "", "the only node that may use the token (default: any)")
	cmd.Flags().DurationVar(&ttl, "ttl", 15*time.Minute, "how long the token is valid")
	return cmd
}

func newUserTokenCommand() *cobra.Command {
	request := &api.CreateTokenRequest{Kind: "user"}
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "user NAME",
		Short: "Create a token for a user, who may then do everything that the controller can",
		Example: "  godwit-controller token user anna\n" +
			"  godwit-controller token user nightly --ttl 720h",
		Args: cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Name, request.TtlSeconds = args[0], ttl.Seconds()
			return createToken(cmd, request)
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long the token is valid (default: no limit)")
	return cmd
}

func createToken(cmd *cobra.Command, request *api.CreateTokenRequest) error {
	runDir, err := cmd.Flags().GetString("run")
	if err != nil {
		return err
	}
	path := controller.SocketPath(runDir)
	client, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to the controller: %w", err)
	}
	defer client.Close()
	reply, err := api.NewControllerAdminClient(client).CreateToken(cmd.Context(), request)
	if err != nil {
		return fmt.Errorf("the controller that leads does not answer at %s, or refuses: %s", path,
			api.Plain(err))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), reply.Token)
	return err
}
