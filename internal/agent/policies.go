package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/policy"
)

// PolicyFile is the policy file of an agent that is given no other path.
const PolicyFile = "/etc/godwit/policy.json"

// ReadPolicy reads the policy of a node. An empty path means the default file, which need not exist; a file
// given by its path must exist.
func ReadPolicy(path string) (policy.Policy, error) {
	content, err := os.ReadFile(cmp.Or(path, PolicyFile))
	if errors.Is(err, fs.ErrNotExist) && path == "" {
		return policy.Policy{}, nil
	}
	if err != nil {
		return policy.Policy{}, fmt.Errorf("read this node's policy: %w", err)
	}
	p, err := policy.Parse(content, modeNames())
	if err != nil {
		return policy.Policy{}, fmt.Errorf("this node's policy file %s: %w; see docs/security.md",
			cmp.Or(path, PolicyFile), err)
	}
	return p, nil
}

// Policy tells which policy this agent obeys. A file that was changed is read by the next agent only, so the
// difference is told, and why the next agent would not start.
func (s *localService) Policy(context.Context, *api.PolicyRequest) (*api.PolicyReply, error) {
	given := s.agent.config.PolicyFile
	reply := &api.PolicyReply{File: cmp.Or(given, PolicyFile), Restricts: s.agent.config.Policy.Describe()}
	now, err := ReadPolicy(given)
	switch {
	case err != nil:
		reply.Changed = err.Error()
	case !slices.Equal(now.Describe(), reply.Restricts):
		reply.Changed = "the file has changed since the agent started"
	}
	return reply, nil
}

// modeNames returns the modes that a policy can name: all but auto.
func modeNames() []string {
	var names []string
	for _, mode := range migration.Modes() {
		if mode != migration.Auto {
			names = append(names, string(mode))
		}
	}
	return names
}

// arrivalProblems lists this node's policy objections to a container that another node offers.
func (a *Agent) arrivalProblems(from string, definition engine.Definition,
	offer *api.Offer) []migration.Problem {
	described := describeFor(from, offer.Mode, definition)
	described.MemoryBytes, described.FilesBytes = offer.MemoryBytes, offer.TreesBytes
	return a.policyProblems(a.config.Policy.Arriving(described))
}

// mayFill returns an error if the policy accepts no containers from a node: their layers are refused, too.
func (a *Agent) mayFill(from string) error {
	return denied(a.policyProblems(a.config.Policy.Arriving(policy.Container{Node: from})))
}

// mayRead returns an error if the policy sends no containers to a node: their layers are not sent, either.
func (a *Agent) mayRead(to string) error {
	return denied(a.policyProblems(a.config.Policy.Leaving(policy.Container{Node: to})))
}

func denied(problems []migration.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	return status.Error(codes.PermissionDenied, (&migration.Refusal{Problems: problems}).Error())
}

// departureRefused returns this node's policy objections to sending a container to another node, as an
// error. For mode auto it checks only the container, because auto never chooses a refused mode.
func (a *Agent) departureRefused(to string, mode migration.Mode, definition engine.Definition) error {
	asked := string(mode)
	if mode == migration.Auto {
		asked = ""
	}
	problems := a.policyProblems(a.config.Policy.Leaving(describeFor(to, asked, definition)))
	if len(problems) == 0 {
		return nil
	}
	return &migration.Refusal{Problems: problems}
}

// refusedModes returns the modes in which no container may move from this node to another, each with the
// reason. A node that has not been heard yet, or whose older release does not announce refused modes, may
// still refuse a mode when the container is offered.
func (a *Agent) refusedModes(to string) map[migration.Mode]string {
	refused := map[migration.Mode]string{}
	for _, mode := range a.peers.RefusedBy(to) {
		refused[mode] = refusedMode(to)
	}
	for _, mode := range a.config.Policy.Refused(modeNames()) {
		refused[migration.Mode(mode)] = refusedMode(a.self.Name)
	}
	return refused
}

func refusedMode(by string) string { return "the policy of node " + by + " does not allow this mode" }

// asAuto returns the mode in which to offer a container for a plan in mode auto. The target checks the same
// for all modes that auto may choose, except for its policy on modes; so any allowed mode will do.
func asAuto(refused map[migration.Mode]string) migration.Mode {
	modes := []migration.Mode{migration.PreCopy, migration.Cold, migration.Hybrid, migration.PostCopy}
	for _, mode := range modes {
		if refused[mode] == "" {
			return mode
		}
	}
	return modes[0]
}

func describeFor(node, mode string, definition engine.Definition) policy.Container {
	described := policy.Container{Node: node, Mode: mode, Engine: definition.EngineName}
	if described.Engine == "" {
		described.Engine = "godwit"
	}
	for _, volume := range definition.Volumes {
		if volume.Sort() == engine.Bind {
			described.HostDirectories = append(described.HostDirectories, filepath.Clean(volume.Source))
		}
	}
	return described
}

func (a *Agent) policyProblems(refusals []policy.Refusal) []migration.Problem {
	var problems []migration.Problem
	for _, r := range refusals {
		problems = append(problems, migration.Problem{
			What: r.What, Why: "the policy of node " + a.self.Name + " does not allow this: " + r.Why,
			Remedy: "choose another node, or ask the administrator of " + a.self.Name +
				" to change " + r.Key + " in its policy file",
		})
	}
	return problems
}
