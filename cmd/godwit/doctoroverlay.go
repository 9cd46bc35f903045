package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/doctor"
	"github.com/godwit/godwit/internal/network"
)

// overlayPatience bounds how long the agent may take to list its nodes.
const overlayPatience = 5 * time.Second

// overlayCheck asks the agent, if one runs, how containers' packets travel to other nodes.
func overlayCheck(cmd *cobra.Command) func(context.Context) (doctor.Requirement, bool) {
	return func(ctx context.Context) (found doctor.Requirement, is bool) {
		ctx, cancel := context.WithTimeout(ctx, overlayPatience)
		defer cancel()
		err := withAgent(cmd, func(agent api.AgentClient) error {
			reply, err := agent.Nodes(ctx, &api.NodesRequest{})
			if err == nil {
				found, is = overlayRequirement(reply.Nodes), true
			}
			return err
		})
		return found, err == nil && is
	}
}

// overlayRequirement returns the overlay's line in the report.
func overlayRequirement(nodes []*api.Node) doctor.Requirement {
	r := doctor.Requirement{
		Name: "encryption between nodes", Level: doctor.Recommended, Status: doctor.Found,
		Lost: "others can read and inject containers' packets between nodes, or these packets do not arrive",
	}
	var wrong []string
	for _, node := range nodes {
		if node.Self {
			r.Detail = node.Overlay
		}
		if node.OverlayError != "" {
			wrong = append(wrong, fmt.Sprintf("%s: %s", node.Name, node.OverlayError))
		}
	}
	switch {
	case len(wrong) > 0:
		r.Status, r.Detail = doctor.Missing, strings.Join(append([]string{r.Detail}, wrong...), "; ")
		r.Advice.General = "start all agents with the same --overlay"
	case r.Detail == network.OverlayVXLAN.Kind():
		r.Status, r.Detail = doctor.Missing, "vxlan: nothing is encrypted"
		r.Advice.General = "start all agents without --overlay vxlan, unless nobody else can send on the " +
			"links between nodes"
	case r.Detail == network.OverlayWireGuard.Kind():
		r.Detail += ", once there is another node"
	}
	return r
}
