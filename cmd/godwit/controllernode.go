package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/uplink"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/pinned"
)

const joinTimeout = 20 * time.Second

// newControllerNodeCommands returns the commands about nodes that a controller has to do with.
func newControllerNodeCommands() []*cobra.Command {
	return []*cobra.Command{newNodeConnectCommand(), newNodeDisconnectCommand(), newNodeDrainCommand(),
		newNodeStateCommand("restore", "active", "Let a node get containers again, and return those "+
			"that left it",
			"Restore ends a drain or a cordon. Containers that left in a drain with --bring-back return."),
		newNodeStateCommand("cordon", "cordoned", "Send no containers to a node; those that are there stay",
			"Cordon keeps the controller from sending containers to the node. A user who asks for it is "+
				"refused, too."),
		newNodeLabelCommand()}
}

func newNodeConnectCommand() *cobra.Command {
	var state, tokenFile string
	cmd := &cobra.Command{
		Use:   "connect HOST[:PORT][,...] --token-file FILE",
		Short: "Connect this node to a controller",
		Long: `Connect makes this node known to a controller, with a token that "godwit-controller token
node" printed.
The agent then dials the controller, and carries out its commands. Name all controllers if there are several.
The node must have an identity; its agent need not run. After a rollover of the cluster's authority, the
controller does not know the new one.`,
		Example: "  ssh controller godwit-controller token node | godwit node connect 192.0.2.1 " +
			"--token-file -",
		Args: cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			addresses, err := uplink.ParseAddresses(args[0])
			if err != nil {
				return cli.Usage(err)
			}
			text, err := joinToken(cmd, nil, tokenFile)
			if err != nil {
				return err
			}
			token, err := pinned.ParseToken(text)
			if err != nil {
				return cli.Usage(err)
			}
			id, err := identity.Load(state)
			if err != nil {
				return err
			}
			if err := joinController(cmd.Context(), addresses, token, id); err != nil {
				return err
			}
			config := uplink.Config{Addresses: addresses, Fingerprint: token.Server.String(),
				Joined: time.Now().UTC()}
			if err := config.Save(state); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Node %s joined the controller at %s.\n", id.Node.Name,
				strings.Join(addresses, ", "))
			return err
		},
	}
	cmd.Flags().StringVar(&state, "state", defaultState, "state directory")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the token; - for standard input")
	return cmd
}

// joinController asks the controllers until one answers: the one that leads.
func joinController(ctx context.Context, addresses []string, token pinned.Token,
	id *identity.Identity) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	var failed error
	for _, address := range addresses {
		client, err := uplink.Dial(address, token.Server, id.Certificate)
		if err != nil {
			return err
		}
		_, err = api.NewUplinkClient(client).Join(ctx, &api.UplinkJoinRequest{Token: token.Secret()})
		client.Close()
		if err == nil {
			return nil
		}
		failed = errors.Join(failed, fmt.Errorf("join the controller at %s: %s", address, plainError(err)))
	}
	return failed
}

func newNodeDisconnectCommand() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "disconnect",
		Short: "Dial no controller any more",
		Long: "Disconnect makes the agent forget its controller. A connection that is open stays " +
			"until it breaks.",
		Example: "  godwit node disconnect",
		Args:    cli.NoArguments,
		RunE:    func(*cobra.Command, []string) error { return uplink.Forget(state) },
	}
	cmd.Flags().StringVar(&state, "state", defaultState, "state directory")
	return cmd
}

func newNodeDrainCommand() *cobra.Command {
	request := &api.SetNodeRequest{State: "draining"}
	var deadline time.Duration
	var wait bool
	cmd := &cobra.Command{
		Use:   "drain NODE --controller HOST",
		Short: "Move all running containers off a node, and send none there",
		Long: `Drain tells the controller to empty a node. Each container goes to the node where it is
predicted to arrive first, within the limits of the controller. Containers that cannot leave stay and run;
"godwit nodes --controller HOST" says why. The node stays drained until "godwit node restore".

The deadline makes a drain more urgent than others as it comes near. Nothing is stopped when it passes.`,
		Example: "  godwit --controller 192.0.2.1 node drain a --wait\n" +
			"  godwit --controller 192.0.2.1 node drain a --deadline 10m --bring-back",
		Args: cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Node, request.DeadlineSeconds = args[0], deadline.Seconds()
			var node *api.ClusterNode
			err := withController(cmd, func(ctx context.Context, c api.ControllerClient) (err error) {
				node, err = c.SetNode(ctx, request)
				return err
			})
			if err == nil && wait { // apart: another leader must not drain the node again
				err = withController(cmd, func(ctx context.Context, c api.ControllerClient) (err error) {
					node, err = awaitEmpty(ctx, c, args[0])
					return err
				})
			}
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "Node %s: %s, %d containers run there.\n", node.Name,
					nodeState(node), node.Containers)
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&deadline, "deadline", 0, "when the node should be empty, from now "+
		"(default: none)")
	cmd.Flags().BoolVar(&request.BringBack, "bring-back", false,
		"return the containers when the node is restored")
	cmd.Flags().BoolVar(&wait, "wait", false, "return when no container runs at the node")
	return cmd
}

// awaitEmpty asks until a node has no running container.
func awaitEmpty(ctx context.Context, c api.ControllerClient, name string) (*api.ClusterNode, error) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		reply, err := c.ClusterNodes(ctx, &api.ClusterNodesRequest{})
		if err != nil {
			return nil, err
		}
		for _, one := range reply.Nodes {
			if one.Name == name && (one.Containers == 0 && one.Connected || one.State != "draining") {
				return one, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, cli.Exit(cli.ExitSignal, errors.New("no longer waiting; the drain goes on"))
		case <-ticker.C:
		}
	}
}

func newNodeStateCommand(verb, state, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NODE --controller HOST", Short: short, Long: long,
		Example: "  godwit --controller 192.0.2.1 node " + verb + " a",
		Args:    cli.Arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withController(cmd, func(ctx context.Context, c api.ControllerClient) error {
				_, err := c.SetNode(ctx, &api.SetNodeRequest{Node: args[0], State: state})
				return err
			})
		},
	}
}

func newNodeLabelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "label NODE KEY=VALUE|KEY-... --controller HOST",
		Short: "Set and remove labels of a node",
		Long: `Label sets labels of a node, or removes those that end with a hyphen. Containers name the
nodes where
they may be by labels: godwit run --label godwit.nodes=zone=x.`,
		Example: "  godwit --controller 192.0.2.1 node label a zone=x disk=ssd\n" +
			"  godwit --controller 192.0.2.1 node label a disk-",
		Args: cli.Arguments(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &api.SetNodeRequest{Node: args[0], Labels: map[string]string{}}
			for _, text := range args[1:] {
				key, value, found := strings.Cut(text, "=")
				removed, remove := strings.CutSuffix(text, "-")
				switch {
				case found:
					request.Labels[key] = value
				case remove:
					request.RemoveLabels = append(request.RemoveLabels, removed)
				default:
					return cli.Usage(fmt.Errorf("%q: want KEY=VALUE to set a label, or KEY- to remove it",
						text))
				}
			}
			return withController(cmd, func(ctx context.Context, c api.ControllerClient) error {
				node, err := c.SetNode(ctx, request)
				if err == nil {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "Node %s: %s\n", node.Name,
						labelText(node.Labels))
				}
				return err
			})
		},
	}
}

// labelText is labels in a line.
func labelText(labels map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, key+"="+labels[key])
	}
	return orDash(strings.Join(all, ","))
}
