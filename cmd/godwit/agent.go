package main

import (
	"fmt"
	"log/slog"
	"os"
	runtimedebug "runtime/debug"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
)

const agentLong = `Agent is the daemon of a node. It runs containers, answers the command line on a unix socket, and
migrates containers to and from other nodes over mutual TLS.

The node must have an identity first: "godwit node init" or "godwit node join". Containers go on when the agent stops or
is upgraded, and migrations that were under way are finished or undone when it is back. packaging/ has a unit for systemd.

If a migration to this node fails, the files that have come stay on its disk for --keep-broken-copies, where only root can read them
and no container finds them, so that the next attempt need not send them again. They go when that has brought the container, or
it is found at another node, when the disk is wanted, and by "godwit stage rm"; "godwit stage ls" lists them.

In modes post-copy and hybrid a container's memory follows after the handover, and both nodes are needed until all of it has.
--post-copy says whether containers that leave this node may move in these modes:
  auto        mode auto may choose them if both nodes are predicted to be needed for 10 s at most (migrate --max-split: another bound)
  on-request  only if a user names the mode, --max-split or --on-no-convergence hybrid, or ends the rounds (migration switch)
  never       such a migration is refused`

// overlayFlag is the value of --overlay.
type overlayFlag struct{ to *network.Overlay }

func (f *overlayFlag) String() string { return string(*f.to) }
func (f *overlayFlag) Type() string   { return "kind" }

func (f *overlayFlag) Set(text string) (err error) {
	*f.to, err = network.ParseOverlay(text)
	return err
}

func newAgentCommand() *cobra.Command {
	config := agent.Config{Version: version, Overlay: network.OverlayAuto}
	var debug bool
	var postCopy string
	var policyFile string
	limit := &parsed[int64]{kind: "size", parse: parseBytes}
	cmd := &cobra.Command{
		Use:     "agent",
		Short:   "Run the daemon of this node",
		Long:    agentLong,
		Example: "  godwit agent\n  godwit agent --group godwit --listen 192.0.2.10:7443",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return fmt.Errorf("the agent must run as root: it makes namespaces, mounts and routes")
			}
			if err := kernel.NoCoreDump(); err != nil {
				return err
			}
			if config.PeerTimeout < agent.MinPeerTimeout {
				return &codedError{exitUsage, fmt.Errorf("--peer-timeout %s: must be at least %s", config.PeerTimeout, agent.MinPeerTimeout)}
			}
			if config.KeepBroken < 0 {
				return &codedError{exitUsage, fmt.Errorf("--keep-broken-copies %s: must be a time, or 0 for none", config.KeepBroken)}
			}
			use, err := migration.ParsePostCopyUse(postCopy)
			if err != nil {
				return &codedError{exitUsage, fmt.Errorf("--post-copy: %w", err)}
			}
			config.PostCopy = use
			config.FootprintLimit = limit.value
			if config.Policy, err = agent.ReadPolicy(policyFile); err != nil {
				return &codedError{exitUsage, err}
			}
			level := slog.LevelInfo
			if debug {
				level = slog.LevelDebug
			}
			config.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			runtimedebug.SetGCPercent(25) // its buffers are reused, so little is collected; the memory is for containers
			return agent.Run(cmd.Context(), config)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&config.StateDir, "state", defaultState, "directory for identity, images, containers and journals")
	flags.StringVar(&config.RunDir, "run", "/run/godwit", "directory for the socket and what does not survive a reboot")
	flags.StringVar(&config.Listen, "listen", "", "TCP address to listen on (default: the port of the node's address, on all interfaces)")
	flags.StringVar(&config.Group, "group", "", "group whose members may use the socket, which makes them as good as root on all nodes (default: root only)")
	flags.StringVar(&config.Rights.Look, "look-group", "", "group whose members may see containers, migrations and nodes")
	flags.StringVar(&config.Rights.Move, "move-group", "", "group whose members may look, and move containers between nodes")
	flags.StringVar(&config.Rights.Run, "run-group", "", "group whose members may look, move, and run and enter containers, which makes them as good as root")
	flags.StringVar(&config.Rights.Manage, "manage-group", "", "group whose members may do everything, like those of --group")
	flags.StringVar(&policyFile, "policy", "", "file that says which containers may come and leave, see docs/security.md (default: "+agent.PolicyFile+", if it exists)")
	flags.BoolVar(&debug, "debug", false, "log more")
	flags.DurationVar(&config.PeerTimeout, "peer-timeout", agent.DefaultPeerTimeout,
		"how long another node may be silent in a migration before it counts as lost")
	flags.Var(limit, "footprint-limit",
		"memory for what is kept of containers that have left (--keep-footprint), such as 2g (default: a quarter of what is available)")
	flags.DurationVar(&config.KeepBroken, "keep-broken-copies", agent.DefaultKeepBroken,
		"how long files stay here that came by a migration that failed, for the next attempt; 0: they are removed at once")
	flags.Var(&overlayFlag{&config.Overlay}, "overlay",
		"overlay for containers' packets between nodes: auto (WireGuard, in the kernel if it can), wireguard (in the kernel only), "+
			"userspace (WireGuard in a process), vxlan (not encrypted: only for links that nobody else can send on); the first three "+
			"work together, vxlan only with vxlan")
	flags.StringVar(&postCopy, "post-copy", string(migration.PostCopyAuto),
		"whether memory of containers that leave may follow after the handover: auto, on-request or never")
	completeValues(cmd, "post-copy", string(migration.PostCopyAuto), string(migration.PostCopyOnRequest), string(migration.PostCopyNever))
	flags.BoolVar(&config.Faults, "faults", false, "for tests: let steps fail or wait as files in the run directory say")
	if err := flags.MarkHidden("faults"); err != nil {
		panic(err) // The flag was defined a line above.
	}
	return cmd
}
