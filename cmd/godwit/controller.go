package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/units"
	"github.com/godwit/godwit/internal/uplink"
	"github.com/godwit/godwit/internal/wire/pinned"
)

// maxAnswerBytes is more than the list of 100,000 containers takes.
const maxAnswerBytes = 256 << 20

// addControllerFlags adds the flags that name a controller.
func addControllerFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.String("controller", os.Getenv("GODWIT_CONTROLLER"),
		"HOST[:PORT] of the controller to ask instead of this node's agent, or several separated by commas, "+
			"for nodes, ps, migrate, migration ls and cancel, audit, and node drain, restore, cordon, label "+
			"(environment: GODWIT_CONTROLLER)")
	flags.String("controller-token", os.Getenv("GODWIT_CONTROLLER_TOKEN"),
		"file with the token for the controller (environment: GODWIT_CONTROLLER_TOKEN; "+
			"default: godwit/token in ~/.config)")
}

// asksController reports whether a command is for a controller.
func asksController(cmd *cobra.Command) bool {
	addresses, err := cmd.Flags().GetString("controller")
	return err == nil && addresses != ""
}

// bearerToken shows a user's token with each call.
type bearerToken struct{ secret string }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.secret}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearerToken) RequireTransportSecurity() bool { return true }

// withController runs a command's body with a client of the controller that leads: the first of the
// addresses that answers.
func withController(cmd *cobra.Command, body func(context.Context, api.ControllerClient) error) error {
	text, err := cmd.Flags().GetString("controller")
	if err != nil {
		return err
	}
	if text == "" {
		return cli.Usage(errors.New("say which controller to ask, with --controller or GODWIT_CONTROLLER"))
	}
	addresses, err := uplink.ParseAddresses(text)
	if err != nil {
		return cli.Usage(err)
	}
	token, err := userToken(cmd)
	if err != nil {
		return err
	}
	var failed error
	for _, address := range addresses {
		client, err := uplink.Dial(address, token.Server, nil,
			grpc.WithPerRPCCredentials(bearerToken{token.Secret()}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
		if err != nil {
			return fmt.Errorf("controller %s: %w", address, err)
		}
		err = body(metadata.NewOutgoingContext(cmd.Context(), metadata.MD{}), api.NewControllerClient(client))
		client.Close()
		if status.Code(err) != codes.Unavailable {
			return err
		}
		failed = errors.Join(failed, fmt.Errorf("the controller at %s does not answer: %s", address,
			plainText(status.Convert(err).Message())))
	}
	return failed
}

// userToken reads the token of the user.
func userToken(cmd *cobra.Command) (pinned.Token, error) {
	path, err := cmd.Flags().GetString("controller-token")
	if err != nil {
		return pinned.Token{}, err
	}
	if path == "" {
		directory, err := os.UserConfigDir()
		if err != nil {
			return pinned.Token{}, fmt.Errorf("find the token: %w; give --controller-token", err)
		}
		path = filepath.Join(directory, "godwit", "token")
	}
	data, err := readSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		return pinned.Token{}, fmt.Errorf("no token for the controller: %w; get one with "+
			"`godwit-controller token user` and put it there, or give --controller-token", err)
	}
	if err != nil {
		return pinned.Token{}, fmt.Errorf("read the token: %w", err)
	}
	token, err := pinned.ParseToken(string(data))
	if err != nil {
		return token, fmt.Errorf("%s: %w", path, err)
	}
	return token, nil
}

// maxTokenBytes is much more than a token has.
const maxTokenBytes = 4096

// readSecret reads a file that nobody but its owner may read.
func readSecret(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others than its owner: chmod 600 it", path)
	}
	return io.ReadAll(io.LimitReader(file, maxTokenBytes))
}

func clusterNodes(cmd *cobra.Command, asJSON bool) error {
	return withController(cmd, func(ctx context.Context, c api.ControllerClient) error {
		reply, err := c.ClusterNodes(ctx, &api.ClusterNodesRequest{})
		if err != nil {
			return err
		}
		if asJSON {
			return cli.PrintJSON(cmd.OutOrStdout(), reply.Nodes)
		}
		return printClusterNodes(cmd.OutOrStdout(), reply.Nodes)
	})
}

func printClusterNodes(w io.Writer, nodes []*api.ClusterNode) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tADDRESS\tSTATE\tCONNECTED\tCONTAINERS\tFREE\tLABELS\tVERSION")
	for _, one := range nodes {
		connected, address, version := "never", "-", "-"
		if one.ChangedUnixNanoseconds != 0 {
			age := units.FormatAge(time.Since(time.Unix(0, one.ChangedUnixNanoseconds)))
			connected, address, version = "no, for "+age, one.Address, one.Version
			if one.Connected {
				connected = "for " + age
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d MiB\t%s\t%s\n", one.Name, address, nodeState(one),
			connected,
			one.Containers, one.FreeBytes>>20, labelText(one.Labels), version)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, one := range nodes {
		for _, text := range one.Obstacles {
			fmt.Fprintf(w, "%s: %s\n", one.Name, text)
		}
	}
	return nil
}

// nodeState is the state of a node in words.
func nodeState(one *api.ClusterNode) string {
	if one.State != "draining" {
		return one.State
	}
	text := "drained"
	if one.Containers > 0 {
		text = "draining"
	}
	text += " by " + one.DrainedBy
	if one.DeadlineUnixNanoseconds != 0 {
		text += " until " + time.Unix(0, one.DeadlineUnixNanoseconds).UTC().Format(time.RFC3339)
	}
	return text
}

func clusterContainers(cmd *cobra.Command, all, asJSON bool) error {
	return withController(cmd, func(ctx context.Context, c api.ControllerClient) error {
		reply, err := c.ClusterContainers(ctx, &api.ClusterContainersRequest{})
		if err != nil {
			return err
		}
		var shown []*api.ClusterContainer
		for _, one := range reply.Containers {
			if ended := one.Container.State == "exited" || one.Container.State == "created"; all || !ended {
				shown = append(shown, one)
			}
		}
		if asJSON {
			return cli.PrintJSON(cmd.OutOrStdout(), shown)
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "ID\tNODE\tNAME\tIMAGE\tSTATE\tADDRESS\tMOVES TO")
		for _, one := range shown {
			state := one.Container.State
			if !one.Connected {
				state += " (last heard)"
			}
			fmt.Fprintf(table, "%.12s\t%s\t%s\t%s\t%s\t%s\t%s\n", one.Container.Id, one.Node,
				one.Container.Name,
				one.Container.Image, state, orDash(one.Container.Address), orDash(one.MovingTo))
		}
		return table.Flush()
	})
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// moveByController makes an intent, and waits for its end unless detach is set.
func moveByController(cmd *cobra.Command, request *api.MoveRequest, asJSON, detach bool) error {
	return withController(cmd, func(ctx context.Context, c api.ControllerClient) error {
		reply, err := c.Move(ctx, request)
		if err != nil {
			return err
		}
		if detach {
			fmt.Fprintln(cmd.OutOrStdout(), reply.Intent.Id)
			return nil
		}
		return watchIntent(ctx, cmd, c, reply.Intent.Id, asJSON)
	})
}

func watchIntent(ctx context.Context, cmd *cobra.Command, c api.ControllerClient, id string,
	asJSON bool) error {
	lost := func(err error) error {
		return cli.Exit(exitInDoubt, fmt.Errorf("no longer watching: %s; the migration goes on without the "+
			"controller: \"godwit migration ls --all\" shows it, and so does its source", plainError(err)))
	}
	stream, err := c.WatchIntent(ctx, &api.WatchIntentRequest{Id: id})
	if err != nil {
		return lost(err)
	}
	said := ""
	for {
		one, err := stream.Recv()
		if err != nil {
			return lost(err)
		}
		line := one.State
		if one.WaitsFor != "" {
			line += ", waits for " + one.WaitsFor
		}
		if text := cancelText(one); text != "" {
			line += ", " + text
		}
		if line != said {
			said = line
			fmt.Fprintf(cmd.ErrOrStderr(), "migration %s of %s from %s to %s: %s\n", id, one.Name, one.From,
				one.To,
				line)
		}
		if one.EndedUnixNanoseconds == 0 {
			continue
		}
		if asJSON {
			if err := cli.PrintJSON(cmd.OutOrStdout(), one); err != nil {
				return err
			}
		}
		if one.State != "moved" {
			return cli.Exit(cli.ExitError, fmt.Errorf("%s did not move: %s", one.Name, plainText(one.Error)))
		}
		if !asJSON {
			fmt.Fprintf(cmd.OutOrStdout(), "%s runs at %s; it was frozen for %s\n", one.Name, one.To,
				units.FormatSeconds(one.DowntimeSeconds))
		}
		return nil
	}
}

// cancelByController ends an intent, or has its migration cancelled.
func cancelByController(cmd *cobra.Command, id string) error {
	return withController(cmd, func(ctx context.Context, c api.ControllerClient) error {
		one, err := c.CancelIntent(ctx, &api.CancelIntentRequest{Id: id})
		if err != nil {
			return err
		}
		if one.EndedUnixNanoseconds != 0 {
			fmt.Fprintf(cmd.OutOrStdout(), "Migration %s of %s from %s to %s is cancelled.\n", one.Id,
				one.Name, one.From, one.To)
			return nil
		}
		fmt.Fprintf(cmd.OutOrStdout(), "Asked %s to cancel the migration %s of %s to %s. \"godwit migration "+
			"ls --all\" shows how it ends.\n", one.From, one.Id, one.Name, one.To)
		return nil
	})
}

// cancelText says that an intent is to be cancelled; empty: it is not.
func cancelText(one *api.Intent) string {
	switch {
	case one.CancelledBy == "" || one.EndedUnixNanoseconds != 0:
		return ""
	case one.CancelError != "":
		return fmt.Sprintf("%s wants it cancelled, but %s", one.CancelledBy, plainText(one.CancelError))
	}
	return one.CancelledBy + " wants it cancelled"
}

// clusterAudit prints what users asked a controller for.
func clusterAudit(cmd *cobra.Command, since time.Duration, asJSON bool) error {
	return withController(cmd, func(ctx context.Context, c api.ControllerClient) error {
		request := &api.ClusterAuditRequest{}
		if since > 0 {
			request.SinceUnixNanoseconds = time.Now().Add(-since).UnixNano()
		}
		stream, err := c.ClusterAudit(ctx, request)
		if err != nil {
			return err
		}
		return printAudits(cmd.OutOrStdout(), stream.Recv, asJSON)
	})
}

func clusterIntents(cmd *cobra.Command, asJSON bool) error {
	return withController(cmd, func(ctx context.Context, c api.ControllerClient) error {
		reply, err := c.Intents(ctx, &api.IntentsRequest{})
		if err != nil {
			return err
		}
		if asJSON {
			return cli.PrintJSON(cmd.OutOrStdout(), reply.Intents)
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "MIGRATION\tCONTAINER\tFROM\tTO\tSTATE\tFROZEN\tCAUSE\tWHY")
		for _, one := range reply.Intents {
			why, frozen := one.Reason, "-"
			switch {
			case one.WaitsFor != "":
				why += "; waits for " + one.WaitsFor
			case one.Error != "":
				why += "; " + plainText(one.Error)
			case cancelText(one) != "":
				why += "; " + cancelText(one)
			}
			if one.State == "moved" {
				frozen = units.FormatSeconds(one.DowntimeSeconds)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", orDash(one.Id), one.Name, one.From, one.To,
				one.State, frozen, one.Cause, strings.ReplaceAll(why, "\n", "; "))
		}
		return table.Flush()
	})
}
