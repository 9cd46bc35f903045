package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/network/foreign"
	"github.com/godwit/godwit/internal/wire/identity"
)

const defaultState = "/var/lib/godwit"

// defaultPool, and defaultDockerSubnet beside it, avoid the ranges that other software on the same machine
// is likely to take by itself:
//   - Docker takes 172.17 to 172.31 and 192.168 (its default-address-pools), Podman 10.88 to 10.255
//     (default_subnet, default_subnet_pools), libvirt 192.168.122;
//   - Kubernetes takes 10.96/12 and 10.244, some of its distributions 10.42, 10.43 and 10.32/12, clouds and
//     homes the numbers from 10.0 on and 172.16, some VPNs 10.64/10;
//   - 100.64/10 (RFC 6598) belongs to Internet providers, and to Tailscale; 198.18/15 (RFC 2544) belongs to
//     devices under test and to some proxies, and firewalls drop it as unassigned.
//
// The range that remains, 10.48 to 10.63, is as good a choice as any, and nobody picks these numbers
// because they are round. A range that is in use is refused.
const defaultPool = "10.57.0.0/16"

const nodeInitLong = `Init makes this machine the first node of a cluster. It creates the node's key and the
certificate authority that admits other nodes. Run it once, before the agent is started.

The address is where other nodes reach this machine; the default port is 7443. Containers get addresses from
the pool, those of node N from its N-th /24. Nothing else on any of the nodes may use the pool, and you cannot
change it later. Init refuses a pool to which this machine already has a route, or in which it has an
address.`

const nodeJoinLong = `Join makes this machine a node of an existing cluster. ADDRESS is the node that made
the token; its agent must be running. The token is the one that "godwit node token" printed there. You can use
it once.

Give the token in a file, or on standard input (--token-file -). Every user of the machine can see the
arguments of a running command, and they stay in the shell's history.

Join uses the token to verify the other node before it sends the token's secret part. The clocks of both
machines must agree to within five minutes.`

// newNodeCommand returns the commands that give this machine an identity. They work on files, without an
// agent.
func newNodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Set up this machine as a node; admit and remove nodes",
		Example: "  godwit node init --address 192.0.2.10           # on the first machine\n" +
			"  godwit node token                               # there, once its agent runs\n" +
			"  godwit node join 192.0.2.10 --token-file - --address 192.0.2.11   # on the second\n" +
			"  godwit node promote b                           # a second node that can admit and remove " +
			"others\n" +
			"  godwit node rm c                                # for good",
	}
	cmd.AddCommand(newNodeInitCommand(), newNodeJoinCommand())
	return cmd
}

// nodeFlags are common to init and join.
type nodeFlags struct {
	state, name, address string
	force                bool
}

func (f *nodeFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.state, "state", defaultState, "state directory")
	flags.StringVar(&f.name, "name", "", "name of this node (default: the host name)")
	flags.StringVar(&f.address, "address", "",
		"HOST or HOST:PORT at which other nodes reach this machine (required)")
	flags.BoolVar(&f.force, "force", false, "set an existing identity aside and make a new one")
}

// complete fills in defaults, and returns an error for a value that has none.
func (f *nodeFlags) complete() error {
	if f.address == "" {
		return cli.Usage(errors.New("--address is missing: give the address at which " +
			"other nodes reach this machine, for example --address 192.0.2.10"))
	}
	if f.name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the host name: %w; give --name", err)
		}
		f.name, _, _ = strings.Cut(strings.ToLower(host), ".")
	}
	if err := identity.CheckName(f.name); err != nil {
		return cli.Usage(fmt.Errorf("%w; give --name", err))
	}
	if _, err := identity.ParseAddress(f.address); err != nil {
		return cli.Usage(fmt.Errorf("--address: %w", err))
	}
	return nil
}

func newNodeInitCommand() *cobra.Command {
	var flags nodeFlags
	var pool string
	cmd := &cobra.Command{
		Use:   "init --address HOST[:PORT]",
		Short: "Make this machine the first node of a cluster",
		Long:  nodeInitLong,
		Example: "  godwit node init --address 192.0.2.10\n  godwit node init --name a --address " +
			"a.example.net:7443 --pool 10.99.0.0/16",
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.complete(); err != nil {
				return err
			}
			prefix, err := netip.ParsePrefix(pool)
			if err == nil {
				err = identity.CheckPool(prefix)
			}
			if err != nil {
				return cli.Usage(fmt.Errorf("--pool: %w", err))
			}
			if err := foreign.CheckFree("", prefix); err != nil {
				return fmt.Errorf("pool of container addresses: %w; choose another with --pool", err)
			}
			made, aside, err := identity.Init(identity.InitOptions{
				State: flags.state, Name: flags.name, Address: flags.address, Pool: prefix,
				Force: flags.force,
			})
			if err != nil {
				return fmt.Errorf("initialise this node: %w", err)
			}
			return printIdentity(cmd.OutOrStdout(), made, aside, "made")
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&pool, "pool", defaultPool, "/16 network for containers' addresses")
	return cmd
}

func newNodeJoinCommand() *cobra.Command {
	var flags nodeFlags
	var tokenFile string
	cmd := &cobra.Command{
		Use:   "join ADDRESS [TOKEN] --address HOST[:PORT]",
		Short: "Make this machine a node of a cluster",
		Long:  nodeJoinLong,
		Example: "  godwit node join 192.0.2.10 --token-file /root/token --address 192.0.2.11\n" +
			"  ssh a godwit node token | godwit node join 192.0.2.10 --token-file - --address 192.0.2.11",
		Args: cli.Arguments(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.complete(); err != nil {
				return err
			}
			token, err := joinToken(cmd, args[1:], tokenFile)
			if err != nil {
				return err
			}
			joined, aside, err := identity.Join(cmd.Context(), identity.JoinOptions{
				State: flags.state, Server: args[0], Token: token, Name: flags.name, Address: flags.address,
				Force: flags.force,
			})
			if err != nil {
				return err
			}
			return printIdentity(cmd.OutOrStdout(), joined, aside, "joined")
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the token; - for standard input")
	return cmd
}

// maxTokenFileBytes is far more than the size of a token.
const maxTokenFileBytes = 4 << 10

// joinToken reads the token from the argument, the file or standard input.
func joinToken(cmd *cobra.Command, args []string, file string) (string, error) {
	switch {
	case len(args) > 0 && file != "":
		return "", cli.Usage(errors.New("two tokens: give either the argument or --token-file"))
	case len(args) > 0:
		fmt.Fprintln(cmd.ErrOrStderr(), "Warning: other users of this machine can see a token that is an "+
			"argument; "+
			"--token-file keeps it secret.")
		return args[0], nil
	case file == "":
		return "", cli.Usage(errors.New("no token: give a file with --token-file, or --token-file - for " +
			"standard input"))
	}
	input := cmd.InOrStdin()
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		defer opened.Close()
		input = opened
	}
	data, err := io.ReadAll(io.LimitReader(input, maxTokenFileBytes))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

func printIdentity(w io.Writer, id *identity.Identity, aside, verb string) error {
	subnet, err := identity.Subnet(id.Pool, id.Node.Number)
	if err != nil {
		return err
	}
	if aside != "" {
		fmt.Fprintf(w, "The old identity is in %s.\n", aside)
	}
	fmt.Fprintf(w, "Node %s %s: number %d at %s, containers in %s, certificate valid until %s.\n",
		id.Node.Name, verb, id.Node.Number, id.Node.Address, subnet, id.Expires().UTC().Format(time.DateOnly))
	_, err = fmt.Fprintln(w, "Now start the agent: systemctl enable --now godwit-agent, or godwit agent.")
	return err
}
