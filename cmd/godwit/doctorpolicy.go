package main

import (
	"context"
	"strings"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/doctor"
)

// policyCheck shows what the policy at the default place restricts. Without one there is no line.
func policyCheck(context.Context) (doctor.Requirement, bool) {
	r := doctor.Requirement{
		Name: "policy", Level: doctor.Required, Status: doctor.Found, Lost: "the agent does not start",
	}
	p, err := agent.ReadPolicy("")
	if err != nil {
		r.Status, r.Detail = doctor.Missing, err.Error()
		r.Advice.General = "correct the file, or remove it"
		return r, true
	}
	lines := p.Describe()
	r.Detail = strings.Join(lines, "; ")
	return r, len(lines) > 0
}
