package podman

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/kernel"
)

// hooksDir is where Podman looks for OCI hooks unless it is configured otherwise
// (containers.conf(5), hooks_dir).
const hooksDir = "/usr/share/containers/oci/hooks.d"

// hooksFlag is where Podman says in its help which directories it reads: what it is configured to
// is the default of a flag, whose type Podman 5 calls another name.
var hooksFlag = regexp.MustCompile(`(?m)^ +--hooks-dir +(?:strings|stringArray)\b(?:.*\(default \[(.*)\]\))?`)

// hookDirectories are those in which Podman looks for hooks, by its help; none: those of its own,
// with hooksDir.
func hookDirectories(help string) ([]string, error) {
	told := hooksFlag.FindStringSubmatch(help)
	if told == nil {
		return nil,
			errors.New("Podman does not say where it looks for OCI hooks") //nolint:staticcheck // its name
	}
	if told[1] == "" {
		return nil, nil
	}
	return csv.NewReader(strings.NewReader(told[1])).Read()
}

// guardObstacles wants guards to be possible, and to be obeyed: without them Podman could start a
// second copy of a container.
func guardObstacles(ctx context.Context, directory string) []engine.Problem {
	ctx, cancel := asking(ctx)
	defer cancel()
	help, err := podman(ctx, "--help")
	var all []string
	if err == nil {
		all, err = hookDirectories(string(help))
	}
	if err != nil {
		return []engine.Problem{{What: "OCI hooks of Podman", Why: err.Error(),
			Remedy: "make sure that podman --help shows --hooks-dir"}}
	}
	p := problems{}
	listed := slices.ContainsFunc(all, func(one string) bool { return filepath.Clean(one) == directory })
	p.add(len(all) > 0 && !listed, "hooks_dir of Podman", "Podman does not look for OCI hooks in "+directory+
		", which keep it from starting a container that is elsewhere",
		"add "+directory+" to hooks_dir in containers.conf, or take hooks_dir out")
	if err := writable(directory); err != nil {
		p.add(true, directory, "Podman cannot be kept from starting a container that is elsewhere: "+
			err.Error(), "make it a writable directory, for example with a mount")
	}
	return p
}

// writable tells why nothing can be made in a directory, which need not be there.
func writable(directory string) error {
	for {
		err := unix.Access(directory, unix.W_OK|unix.X_OK)
		if !errors.Is(err, fs.ErrNotExist) || directory == "/" {
			if err != nil {
				err = &fs.PathError{Op: "write to", Path: directory, Err: err}
			}
			return err
		}
		directory = filepath.Dir(directory)
	}
}

// hook is a file of Podman's for hooks (oci-hooks(5)).
type hook struct {
	Version string   `json:"version"`
	Hook    command  `json:"hook"`
	When    when     `json:"when"`
	Stages  []string `json:"stages"`
}

type command struct {
	Path string   `json:"path"`
	Args []string `json:"args"`
	Env  []string `json:"env"`
}

type when struct {
	Always      bool              `json:"always,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"` // expressions for names, and for values
}

// arrivalAnnotation is what a container has that is made for an arrival: its value is the id that
// all nodes know it by. Before Podman has made the container there is nothing else by which a guard
// could know it.
const arrivalAnnotation = "io.godwit.arrival"

// saysMoving is what the shell of a guard does.
const saysMoving = `echo "container %s has moved, or is moving, to or from another node: godwit migration ls" >&2; exit 1`

// guarding is the file that guards a container.
func (a *adapter) guarding(engineID string) string {
	return filepath.Join(a.hooks, "godwit-"+engineID+".json")
}

// guard has the runtime refuse to make the processes of a container. Podman runs the hook for all
// containers, and tells it which by the state that runtimes give to hooks, so it compares; with
// what every system has, because a hook whose program is gone would keep every container from
// starting.
func (a *adapter) guard(engineID string) error {
	if !idPattern.MatchString(engineID) {
		return fmt.Errorf("guard container %.80q: not a container ID", engineID)
	}
	refuse := fmt.Sprintf(saysMoving, engineID[:12])
	script := `case "$(cat)" in *'"id"'*` + engineID + `*) ` + refuse + `;; esac`
	return a.write(a.guarding(engineID), engineID, when{Always: true}, script)
}

// guarded tells whether a container is: it comes, or leaves.
func (a *adapter) guarded(engineID string) bool { return durable.Exists(a.guarding(engineID)) }

// guardArrival has it refuse a container that will be made for an arrival, of whatever id.
func (a *adapter) guardArrival(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("guard the arrival of container %.80q: not a container ID", id)
	}
	named := map[string]string{"^" + regexp.QuoteMeta(arrivalAnnotation) + "$": "^" + id + "$"}
	return a.write(a.guardingArrival(id), id, when{Annotations: named},
		"cat >/dev/null; "+fmt.Sprintf(saysMoving, id[:12]))
}

func (a *adapter) guardingArrival(id string) string {
	return filepath.Join(a.hooks, "godwit-arrival-"+id+".json")
}

// write makes a hook of a guard's script.
func (a *adapter) write(path, id string, when when, script string) error {
	data, err := json.MarshalIndent(hook{
		Version: "1.0.0", When: when, Stages: []string{"createRuntime"},
		Hook: command{Path: "/bin/sh", Args: []string{"sh", "-c", script},
			Env: []string{"PATH=/usr/bin:/bin", shim.GuardVariable + "=" + id}},
	}, "", "  ")
	if err == nil {
		err = os.MkdirAll(a.hooks, 0o755)
	}
	if err == nil {
		err = kernel.WriteFileAtomic(path, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("keep Podman from starting container %.12s: %w", id, err)
	}
	return nil
}

// Restart says whether Podman may start a container again that has ended. Its policy stays as it is.
func (a *adapter) Restart(_ context.Context, found oci.Container, policy json.RawMessage) error {
	if policy == nil {
		return a.guard(found.ID)
	}
	return a.Gone(found.ID)
}

// unitLinks are those by which systemd starts the service with which Podman starts containers when
// the machine comes up.
const unitLinks = "/etc/systemd/system/*.wants/podman-restart.service"

// StartsAtBoot tells whether that service would start a container that ran when the machine went
// down (podman-restart.service).
func (a *adapter) StartsAtBoot(_ oci.Container, told json.RawMessage) bool {
	var policy restartPolicy
	enabled, err := filepath.Glob(unitLinks)
	return err == nil && len(enabled) > 0 && json.Unmarshal(told, &policy) == nil && policy.Name == "always"
}

// Gone ends the guards of a container, by its own id or that of its arrival.
func (a *adapter) Gone(id string) error {
	if err := errors.Join(durable.Remove(a.guarding(id)), durable.Remove(a.guardingArrival(id))); err != nil {
		return fmt.Errorf("let Podman start container %.12s: %w", id, err)
	}
	return nil
}
