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
	"github.com/godwit/godwit/internal/cli"
)

func newAuditCommand() *cobra.Command {
	var asJSON bool
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List requests from users and other nodes, with their outcome",
		Long: `Audit prints the requests of this node's users, and of other nodes, to change something or to
show a secret. Each line has the time, the caller (a user's uid, gid and pid, or a node's name and address),
the method, the container, node, image or migration, and the outcome. The log never contains program
arguments, environment values or tokens.

The log is kept in the state directory: calls by users in audit.log and audit.log.1, calls by other nodes in
audit-nodes.log and audit-nodes.log.1. Each file holds up to 8 MiB.

With --controller, audit prints what users asked this controller for, and which nodes joined. That needs a
token with the role admin.`,
		Example: "  godwit audit --since 24h\n  godwit audit --json",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asksController(cmd) {
				return clusterAudit(cmd, since, asJSON)
			}
			return withAgent(cmd, func(agent api.AgentClient) error {
				request := &api.AuditRequest{}
				if since > 0 {
					request.SinceUnixNanoseconds = time.Now().Add(-since).UnixNano()
				}
				stream, err := agent.Audit(cmd.Context(), request)
				if err != nil {
					return err
				}
				return printAudits(cmd.OutOrStdout(), stream.Recv, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one document per line")
	cmd.Flags().DurationVar(&since, "since", 0, "how far back to go, such as 24h (default: the whole log)")
	return cmd
}

// audited is an entry of an audit log, of a node or of the controller.
type audited interface{ GetEntryJson() []byte }

// printAudits prints the entries of an audit log as they come, until their end.
func printAudits[T audited](w io.Writer, next func() (T, error), asJSON bool) error {
	for {
		reply, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = printAudit(w, reply.GetEntryJson(), asJSON)
		}
		if err != nil {
			return err
		}
	}
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
	if entry.User != "" {
		who = strings.TrimSpace("user " + plainText(entry.User) + " " + entry.Address)
	}
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
