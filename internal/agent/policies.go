package agent

import (
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

// PolicyFile is where an agent looks for its policy if it is not told another place.
const PolicyFile = "/etc/godwit/policy.json"

// ReadPolicy reads the policy of a node. The file at the default place need not be there; one that was
// named must be.
func ReadPolicy(path string) (policy.Policy, error) {
	named := path != ""
	if !named {
		path = PolicyFile
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return policy.Policy{}, nil
	}
	if err != nil {
		return policy.Policy{}, fmt.Errorf("policy of this node: %w", err)
	}
	p, err := policy.Parse(content, modeNames())
	if err != nil {
		return policy.Policy{}, fmt.Errorf("policy of this node, %s: %w; see docs/security.md", path, err)
	}
	return p, nil
}

// modeNames are the modes that a policy can name.
func modeNames() []string {
	var names []string
	for _, mode := range migration.Modes() {
		if mode != migration.Auto {
			names = append(names, string(mode))
		}
	}
	return names
}

// arrivalProblems are what this node's policy has against a container that another node offers.
func (a *Agent) arrivalProblems(from string, definition engine.Definition, offer *api.Offer) []migration.Problem {
	described := describeFor(from, offer.Mode, definition)
	described.MemoryBytes, described.FilesBytes = offer.MemoryBytes, offer.TreesBytes
	return a.policyProblems(a.config.Policy.Arriving(described))
}

// mayFill refuses a node from which no containers are accepted, and so none of what belongs to them.
func (a *Agent) mayFill(from string) error {
	return denied(a.policyProblems(a.config.Policy.Arriving(policy.Container{Node: from})))
}

// mayRead refuses a node to which no containers are sent, and so none of what belongs to them.
func (a *Agent) mayRead(to string) error {
	return denied(a.policyProblems(a.config.Policy.Leaving(policy.Container{Node: to})))
}

func denied(problems []migration.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	return status.Error(codes.PermissionDenied, (&problemsError{problems}).Error())
}

// departureRefused is what this node's policy has against a container going to another one. Of mode auto
// only the container is looked at: it does not choose a mode that is refused.
func (a *Agent) departureRefused(to string, mode migration.Mode, definition engine.Definition) error {
	asked := string(mode)
	if mode == migration.Auto {
		asked = ""
	}
	problems := a.policyProblems(a.config.Policy.Leaving(describeFor(to, asked, definition)))
	if len(problems) == 0 {
		return nil
	}
	return &problemsError{problems}
}

// refusedModes are those in which no container may go from this node to another one, and why. A node of a
// release that does not say what it refuses, or that was not heard yet, may still refuse a mode when the
// container is offered.
func (a *Agent) refusedModes(to string) map[migration.Mode]string {
	refused := map[migration.Mode]string{}
	for _, mode := range a.peers.refusedBy(to) {
		refused[mode] = refusedMode(to)
	}
	for _, mode := range a.config.Policy.Refused(modeNames()) {
		refused[migration.Mode(mode)] = refusedMode(a.self.Name)
	}
	return refused
}

func refusedMode(by string) string { return "the policy of " + by + " refuses this mode" }

// asAuto is the mode in which a container is offered for a plan of mode auto: the target looks for the same
// in all modes that auto may choose, but for what its policy has against them.
func asAuto(refused map[migration.Mode]string) migration.Mode {
	modes := []migration.Mode{migration.PreCopy, migration.Cold, migration.Hybrid, migration.PostCopy}
	for _, mode := range modes {
		if refused[mode] == "" {
			return mode
		}
	}
	return modes[0]
}

// noteRefused keeps the modes that a node refuses. It may be of a release that knows more of them.
func (p *peers) noteRefused(name string, said []string) {
	refused := slices.DeleteFunc(migration.Modes(), func(mode migration.Mode) bool {
		return !slices.Contains(said, string(mode))
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil {
		known.refused = refused
	}
}

func (p *peers) refusedBy(name string) []migration.Mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil {
		return known.refused
	}
	return nil
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
			What: r.What, Why: "the policy of " + a.self.Name + " refuses: " + r.Why,
			Remedy: "choose another node, or have " + a.self.Name + "'s administrator change " + r.Key + " in its policy file",
		})
	}
	return problems
}
