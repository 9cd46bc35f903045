package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
)

func newAuditCommand() *cobra.Command {
	var asJSON bool
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List what users and other nodes asked of this node, and the outcome",
		Long: `Audit prints the calls of this node's users, and of other nodes, that change something or
show a secret: time, who (uid, gid and pid of a user; name and address of a node), method, the container,
node, image or migration, and the outcome. It never has program arguments, environment values or tokens.

The files are audit.log and audit.log.1 in the state directory for users, and audit-nodes.log and
audit-nodes.log.1 for other nodes, up to 8 MiB each.`,
		Example: "  godwit audit --since 24h\n  godwit audit --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAgent(cmd, func(agent api.AgentClient) error {
				request := &api.AuditRequest{}
				if since > 0 {
					request.SinceUnixNanoseconds = time.Now().Add(-since).UnixNano()
				}
				stream, err := agent.Audit(cmd.Context(), request)
				if err != nil {
					return err
				}
				for {
					reply, err := stream.Recv()
					if errors.Is(err, io.EOF) {
						return nil
					}
					if err == nil {
						err = printAudit(cmd.OutOrStdout(), reply.EntryJson, asJSON)
					}
					if err != nil {
						return err
					}
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one document per line")
	cmd.Flags().DurationVar(&since, "since", 0, "only calls within this time, such as 24h (default: all calls in the log)")
	return cmd
}

func printAudit(w io.Writer, document []byte, asJSON bool) error {
	if asJSON {
		_, err := fmt.Fprintln(w, string(document))
		return err
	}
	var entry audit.Entry
	if err := json.Unmarshal(document, &entry); err != nil {
		return fmt.Errorf("entry of the audit log: %w", err)
	}
	who := strings.TrimSpace("node " + entry.Node + " " + entry.Address)
	if entry.UID != nil && entry.GID != nil {
		who = fmt.Sprintf("uid %d gid %d pid %d", *entry.UID, *entry.GID, entry.PID)
	}
	object := cmp.Or(plainText(entry.Object), "-")
	when := entry.Time.Local().Format(time.DateTime)
	line := fmt.Sprintf("%s  %s  %s %s: %s", when, who, entry.Method, object, entry.Outcome)
	if entry.Error != "" {
		line += ": " + plainText(entry.Error)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
