package admission

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	p, err := policy.Parse(content, ModeNames())
	if err != nil {
		return policy.Policy{}, fmt.Errorf("this node's policy file %s: %w; see docs/security.md",
			cmp.Or(path, PolicyFile), err)
	}
	return p, nil
}

// ModeNames returns the modes that a policy can name: all but auto.
func ModeNames() []string {
	var names []string
	for _, mode := range migration.Modes() {
		if mode != migration.Auto {
			names = append(names, string(mode))
		}
	}
	return names
}

// Rules are a node's policy, and whose it is.
type Rules struct {
	Node   string
	Policy policy.Policy
}

// arrival lists this node's policy objections to a container that another node offers.
func (r Rules) arrival(from string, definition engine.Definition,
	offer *api.Offer) []migration.Problem {
	described := describeFor(from, offer.Mode, definition)
	described.MemoryBytes, described.FilesBytes = offer.MemoryBytes, offer.TreesBytes
	return r.problems(r.Policy.Arriving(described))
}

// MayFill returns an error if the policy accepts no containers from a node: their layers are refused, too.
func (r Rules) MayFill(from string) error {
	return denied(r.problems(r.Policy.Arriving(policy.Container{Node: from})))
}

// MayRead returns an error if the policy sends no containers to a node: their layers are not sent, either.
func (r Rules) MayRead(to string) error {
	return denied(r.problems(r.Policy.Leaving(policy.Container{Node: to})))
}

func denied(problems []migration.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	return status.Error(codes.PermissionDenied, (&migration.Refusal{Problems: problems}).Error())
}

// DepartureRefused returns this node's policy objections to sending a container to another node, as an
// error. For mode auto it checks only the container, because auto never chooses a refused mode.
func (r Rules) DepartureRefused(to string, mode migration.Mode, definition engine.Definition) error {
	asked := string(mode)
	if mode == migration.Auto {
		asked = ""
	}
	problems := r.problems(r.Policy.Leaving(describeFor(to, asked, definition)))
	if len(problems) == 0 {
		return nil
	}
	return &migration.Refusal{Problems: problems}
}

// RefusedModes returns the modes in which no container may move from this node to another, each with the
// reason. A node that has not been heard yet, or whose older release does not announce refused modes, may
// still refuse a mode when the container is offered.
func (r Rules) RefusedModes(to string, theirs []migration.Mode) map[migration.Mode]string {
	refused := map[migration.Mode]string{}
	for _, mode := range theirs {
		refused[mode] = RefusedMode(to)
	}
	for _, mode := range r.Policy.Refused(ModeNames()) {
		refused[migration.Mode(mode)] = RefusedMode(r.Node)
	}
	return refused
}

// RefusedMode says by which node a mode is refused.
func RefusedMode(by string) string { return "the policy of node " + by + " does not allow this mode" }

// AsAuto returns the mode in which to offer a container for a plan in mode auto. The target checks the same
// for all modes that auto may choose, except for its policy on modes; so any allowed mode will do.
func AsAuto(refused map[migration.Mode]string) migration.Mode {
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

func (r Rules) problems(refusals []policy.Refusal) []migration.Problem {
	var problems []migration.Problem
	for _, refusal := range refusals {
		problems = append(problems, migration.Problem{
			What: refusal.What, Why: "the policy of node " + r.Node + " does not allow this: " + refusal.Why,
			Remedy: "choose another node, or ask the administrator of " + r.Node +
				" to change " + refusal.Key + " in its policy file",
		})
	}
	return problems
}
