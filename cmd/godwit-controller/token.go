package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/controller"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/units"
)

func newTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and remove tokens of nodes and users",
		Long: `A token has a secret for a node or a user. It also proves to them that they talk to the right
controller. The controller keeps only a hash. Run token as root on the machine of the controller that leads.`,
	}
	cmd.AddCommand(newNodeTokenCommand(), newUserTokenCommand(), newTokenListCommand(),
		newTokenRemoveCommand())
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
		Short: "Create a token for a user",
		Long: `User makes a token with a role. Each role includes the ones before it:

  viewer    sees nodes, containers and migrations
  operator  moves containers and cancels moves, drains, cordons, restores and labels nodes
  admin     sees who did what ("godwit audit")`,
		Example: "  godwit-controller token user anna\n" +
			"  godwit-controller token user dashboard --role viewer --ttl 720h",
		Args: cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Name, request.TtlSeconds = args[0], ttl.Seconds()
			return createToken(cmd, request)
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long the token is valid (default: no limit)")
	cmd.Flags().StringVar(&request.Role, "role", string(store.Operator),
		"what the user may do: viewer, operator or admin")
	return cmd
}

func newTokenListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the tokens, without their secrets",
		Long: `Ls lists the tokens of users, and those with which nodes may join. The controller removes
those of nodes an hour after they were used or expired, and those of users 30 days after they expired.`,
		Example: "  godwit-controller token ls\n  godwit-controller token ls --json | jq -r '.[].name'",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAdmin(cmd, func(ctx context.Context, admin api.ControllerAdminClient) error {
				reply, err := admin.ListTokens(ctx, &api.ListTokensRequest{})
				if err != nil {
					return err
				}
				return printTokens(cmd.OutOrStdout(), reply.Tokens, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newTokenRemoveCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rm ID|USER",
		Short: "Remove a token, or all tokens of a user",
		Long: `Rm makes a token useless at once, by the id that "godwit-controller token ls" shows, or all
tokens of a user, by name. What the user asked for before goes on. Nodes that have joined need no token.`,
		Example: "  godwit-controller token rm anna\n  godwit-controller token rm 3f2a81c09b7d",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withAdmin(cmd, func(ctx context.Context, admin api.ControllerAdminClient) error {
				reply, err := admin.RemoveToken(ctx, &api.RemoveTokenRequest{Reference: args[0]})
				if err != nil {
					return err
				}
				if asJSON {
					return printTokens(cmd.OutOrStdout(), reply.Tokens, true)
				}
				for _, one := range reply.Tokens {
					fmt.Fprintf(cmd.OutOrStdout(), "Token %s of %s removed.\n", one.Id, ownerOf(one))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was removed as JSON")
	return cmd
}

// ownerOf says whom a token is for.
func ownerOf(one *api.TokenRecord) string {
	if one.Kind == "node" && one.Name == "" {
		return "any node"
	}
	return one.Kind + " " + one.Name
}

func printTokens(w io.Writer, tokens []*api.TokenRecord, asJSON bool) error {
	if asJSON {
		if tokens == nil {
			tokens = []*api.TokenRecord{} // prints as [] instead of null
		}
		return cli.PrintJSON(w, tokens)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tFOR\tROLE\tSTATE\tCREATED\tEXPIRES")
	for _, one := range tokens {
		expires := "never"
		if one.ExpiresUnixNanoseconds != 0 {
			expires = time.Unix(0, one.ExpiresUnixNanoseconds).UTC().Format(time.RFC3339)
		}
		age := units.FormatAge(time.Since(time.Unix(0, one.CreatedUnixNanoseconds)))
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s ago\t%s\n", one.Id, ownerOf(one), cmp.Or(one.Role, "-"),
			one.State, age, expires)
	}
	return table.Flush()
}

func createToken(cmd *cobra.Command, request *api.CreateTokenRequest) error {
	return withAdmin(cmd, func(ctx context.Context, admin api.ControllerAdminClient) error {
		reply, err := admin.CreateToken(ctx, request)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), reply.Token)
		return err
	})
}

// withAdmin runs a command's body with a client of the controller that leads on this machine.
func withAdmin(cmd *cobra.Command, body func(context.Context, api.ControllerAdminClient) error) error {
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
	err = body(cmd.Context(), api.NewControllerAdminClient(client))
	if status.Code(err) == codes.Unavailable {
		return fmt.Errorf("the controller that leads does not answer at %s: %s", path, api.Plain(err))
	}
	return err
}
