package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/network/tunnel"
	"github.com/godwit/godwit/internal/units"
)

const agentLong = `Agent is the daemon of a node. It runs containers, answers the command line on a unix
socket, and migrates containers to and from other nodes over mutual TLS.

The node needs an identity first: run "godwit node init" or "godwit node join". Containers keep running while
the agent is stopped or upgraded. When the agent is back, it finishes or undoes the migrations that were under
way. packaging/ has a systemd unit.

If a migration to this node fails, the received files stay on disk for --keep-broken-copies, so that the next
attempt need not send them again. Only root can read them, and no container sees them. The agent removes them
when the container arrives or is found at another node, or when it needs the disk space. "godwit stage ls"
lists them, and "godwit stage rm" removes them.

In modes post-copy and hybrid, a container's memory follows after the handover, and the container needs both
nodes until all of it has arrived. --post-copy says whether containers that leave this node may use these
modes:
  auto        mode auto may choose them if it predicts that both nodes are needed for at most 10 s
              (migrate --max-split sets another bound)
  on-request  only a user may choose them: by naming the mode, with --max-split or --on-no-convergence hybrid,
              or by ending the rounds (migration switch)
  never       the agent refuses such a migration`

// overlayFlag is the value of --overlay.
type overlayFlag struct{ to *network.Overlay }

func (f *overlayFlag) String() string { return string(*f.to) }
func (f *overlayFlag) Type() string   { return "kind" }

func (f *overlayFlag) Set(text string) (err error) {
	*f.to, err = tunnel.ParseOverlay(text)
	return err
}

// agentOptions are the values of the agent's flags.
type agentOptions struct {
	config     agent.Config
	debug      bool
	postCopy   string
	policyFile string
	limit      cli.Parsed[int64] // of residual copies
}

func newAgentCommand() *cobra.Command {
	o := agentOptions{
		config: agent.Config{Version: version, Overlay: network.OverlayAuto},
		limit:  cli.Parsed[int64]{Kind: "size", Parse: units.ParseSize},
	}
	cmd := &cobra.Command{
		Use:     "agent",
		Short:   "Run the daemon of this node",
		Long:    agentLong,
		Example: "  godwit agent\n  godwit agent --group godwit --listen 192.0.2.10:7443",
		Args:    cli.NoArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.flags(cmd)
	return cmd
}

func (o *agentOptions) run(cmd *cobra.Command) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("run the agent as root: it makes namespaces, mounts and routes")
	}
	if err := kernel.NoCoreDump(); err != nil {
		return err
	}
	if o.config.PeerTimeout < agent.MinPeerTimeout {
		return cli.Usage(fmt.Errorf("--peer-timeout %s: must be at least %s", o.config.PeerTimeout,
			agent.MinPeerTimeout))
	}
	if o.config.KeepBroken < 0 {
		return cli.Usage(fmt.Errorf("--keep-broken-copies %s: must be a time, or 0 for none",
			o.config.KeepBroken))
	}
	use, err := migration.ParsePostCopyUse(o.postCopy)
	if err != nil {
		return cli.Usage(fmt.Errorf("--post-copy: %w", err))
	}
	o.config.PostCopy = use
	o.config.ResidualLimit = o.limit.Value
	o.config.PolicyFile = o.policyFile
	if o.config.Policy, err = admission.ReadPolicy(o.policyFile); err != nil {
		return cli.Usage(err)
	}
	level := slog.LevelInfo
	if o.debug {
		level = slog.LevelDebug
	}
	o.config.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	return agent.Run(cmd.Context(), o.config)
}

func (o *agentOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.config.StateDir, "state", defaultState,
		"directory for identity, images, containers and journals")
	flags.StringVar(&o.config.RunDir, "run", "/run/godwit",
		"directory for the socket and other data that a reboot deletes")
	flags.StringVar(&o.config.Listen, "listen", "",
		"TCP address to listen on (default: the port of the node's address, on all interfaces)")
	flags.StringVar(&o.config.Group, "group", "",
		"group with full rights: its members are as powerful as root on all nodes (default: root only)")
	flags.StringVar(&o.config.Rights.Look, "look-group", "",
		"group whose members may see containers, migrations and nodes")
	flags.StringVar(&o.config.Rights.Move, "move-group", "",
		"group whose members may also move containers between nodes")
	flags.StringVar(&o.config.Rights.Run, "run-group", "",
		"group whose members may also run and enter containers, which makes them as powerful as root")
	flags.StringVar(&o.config.Rights.Manage, "manage-group", "",
		"group with full rights, like --group")
	flags.StringVar(&o.policyFile, "policy", "",
		"policy file: which containers may come and leave, see docs/security.md "+
			"(default: "+admission.PolicyFile+", if it exists)")
	flags.BoolVar(&o.debug, "debug", false, "log more")
	flags.DurationVar(&o.config.PeerTimeout, "peer-timeout", agent.DefaultPeerTimeout,
		"how long another node may be silent in a migration before it counts as lost")
	flags.Var(&o.limit, "footprint-limit",
		"memory for residual copies of containers that have left (migrate --keep-footprint), such as 2g "+
			"(default: a quarter of the available memory)")
	flags.DurationVar(&o.config.KeepBroken, "keep-broken-copies", agent.DefaultKeepBroken,
		"how long to keep files received by a failed migration, for the next attempt; 0: remove them at once")
	flags.Var(&overlayFlag{&o.config.Overlay}, "overlay",
		"overlay for containers' packets between nodes: auto (WireGuard, in the kernel if possible), "+
			"wireguard (in the kernel only), userspace (WireGuard in a process), "+
			"vxlan (not encrypted: only for links on which nobody else can send); "+
			"the first three work together, vxlan works only with vxlan")
	flags.StringVar(&o.postCopy, "post-copy", string(migration.PostCopyAuto),
		"whether memory of leaving containers may follow after the handover: auto, on-request or never")
	completeValues(cmd, "post-copy", string(migration.PostCopyAuto), string(migration.PostCopyOnRequest),
		string(migration.PostCopyNever))
	flags.BoolVar(&o.config.Faults, "faults", false,
		"for tests: let steps fail or wait as files in the run directory say")
	if err := flags.MarkHidden("faults"); err != nil {
		panic(err) // The flag was defined a line above.
	}
}
