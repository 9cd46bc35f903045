package rpc

import (
	"cmp"
	"context"
	"slices"

	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/policy"
)

// PolicyService answers for the policy that the node obeys.
type PolicyService struct {
	File   string // from which it was read; "" for the default one
	Obeyed policy.Policy
}

// Policy tells which policy this agent obeys. A file that was changed is read by the next agent only, so the
// difference is told, and why the next agent would not start.
func (s *PolicyService) Policy(context.Context, *api.PolicyRequest) (*api.PolicyReply, error) {
	given := s.File
	reply := &api.PolicyReply{File: cmp.Or(given, admission.PolicyFile),
		Restricts: s.Obeyed.Describe()}
	now, err := admission.ReadPolicy(given)
	switch {
	case err != nil:
		reply.Changed = err.Error()
	case !slices.Equal(now.Describe(), reply.Restricts):
		reply.Changed = "the file has changed since the agent started"
	}
	return reply, nil
}
