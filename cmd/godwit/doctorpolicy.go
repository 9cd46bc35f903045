package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/doctor"
)

// policyCheck shows the restrictions of this node's policy: the policy that the agent obeys, or, if no
// agent answers, the policy in the default file. There is no line if the policy restricts nothing.
func policyCheck(cmd *cobra.Command) func(context.Context) (doctor.Requirement, bool) {
	return func(ctx context.Context) (doctor.Requirement, bool) {
		ctx, cancel := context.WithTimeout(ctx, alarmPatience)
		defer cancel()
		var obeyed *api.PolicyReply
		err := withAgent(cmd, func(agent api.AgentClient) (err error) {
			obeyed, err = agent.Policy(ctx, &api.PolicyRequest{})
			return err
		})
		if err != nil { // doctor also runs on machines without an agent or with an older one
			return writtenPolicy("")
		}
		return obeyedPolicy(obeyed)
	}
}

func obeyedPolicy(obeyed *api.PolicyReply) (doctor.Requirement, bool) {
	r := policyLine(obeyed.File, obeyed.Restricts)
	if obeyed.Changed != "" {
		r.Level, r.Status = doctor.Recommended, doctor.Missing
		r.Detail = "the agent obeys " + r.Detail + ". The file now differs: " + obeyed.Changed
		r.Lost = "the agent does not obey the current file"
		r.Advice.General = "correct the file if it has an error, and restart the agent"
	}
	return r, len(obeyed.Restricts) > 0 || obeyed.Changed != ""
}

// writtenPolicy shows the restrictions in a policy file; an empty path means the default file.
func writtenPolicy(path string) (doctor.Requirement, bool) {
	p, err := admission.ReadPolicy(path)
	lines := p.Describe()
	r := policyLine(admission.PolicyFile, lines)
	r.Detail += " (no agent has reported its policy; this is the default file's)"
	if err != nil {
		r.Status, r.Detail = doctor.Missing, err.Error()
		r.Advice.General = "correct the file, or remove it"
	}
	return r, len(lines) > 0 || err != nil
}

func policyLine(file string, restricts []string) doctor.Requirement {
	detail := file + ": " + strings.Join(restricts, "; ")
	if len(restricts) == 0 {
		detail = file + ", which restricts nothing"
	}
	return doctor.Requirement{
		Name: "policy", Level: doctor.Required, Status: doctor.Found, Lost: "the agent does not start",
		Detail: detail,
	}
}
