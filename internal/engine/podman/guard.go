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

// hooksDir is Podman's default directory for OCI hooks (containers.conf(5), hooks_dir).
const hooksDir = "/usr/share/containers/oci/hooks.d"

// hooksFlag matches the flag in Podman's help whose default is the configured directories. Podman 5 names
// the flag's type differently.
var hooksFlag = regexp.MustCompile(`(?m)^ +--hooks-dir +(?:strings|stringArray)\b(?:.*\(default \[(.*)\]\))?`)

// hookDirectories returns the directories in which Podman looks for hooks, according to its help. None:
// Podman's own default directories, which include hooksDir.
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

// guardObstacles requires that guards can be made and are obeyed: without them Podman could start a second
// copy of a container.
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

// writable says why nothing can be made in a directory, which need not exist.
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

// hook is Podman's configuration file for a hook (oci-hooks(5)).
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
	Annotations map[string]string `json:"annotations,omitempty"` // patterns of names, and of values
}

// arrivalAnnotation is the annotation of a container that is made for an arrival. Its value is the ID by
// which all nodes know the container. Before Podman has made the container, a guard has nothing else to
// recognise it by.
const arrivalAnnotation = "io.godwit.arrival"

// saysMoving is the shell script of a guard.
const saysMoving = `echo "container %s has moved, or is moving, to or from another node: ` +
	`godwit migration ls" >&2; exit 1`

// guards keep Podman from starting containers, by OCI hooks in a directory.
type guards struct{ directory string }

// guarding returns the path of the file that guards a container.
func (g guards) guarding(engineID string) string {
	return filepath.Join(g.directory, "godwit-"+engineID+".json")
}

// guard makes the runtime refuse to start the processes of a container. Podman runs the hook for all
// containers, and passes it the state that runtimes give to hooks, so the hook compares IDs. It uses only
// programs that every system has, because a hook whose program is missing would keep every container from
// starting.
func (g guards) guard(engineID string) error {
	if !idPattern.MatchString(engineID) {
		return fmt.Errorf("guard container %.80q: not a container ID", engineID)
	}
	refuse := fmt.Sprintf(saysMoving, engineID[:12])
	script := `case "$(cat)" in *'"id"'*` + engineID + `*) ` + refuse + `;; esac`
	return g.write(g.guarding(engineID), engineID, when{Always: true}, script)
}

// guarded reports whether a container is guarded: it arrives, or leaves.
func (g guards) guarded(engineID string) bool { return durable.Exists(g.guarding(engineID)) }

// guardArrival guards a container that will be made for an arrival, whatever its ID will be.
func (g guards) guardArrival(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("guard the arrival of container %.80q: not a container ID", id)
	}
	named := map[string]string{"^" + regexp.QuoteMeta(arrivalAnnotation) + "$": "^" + id + "$"}
	return g.write(g.guardingArrival(id), id, when{Annotations: named},
		"cat >/dev/null; "+fmt.Sprintf(saysMoving, id[:12]))
}

func (g guards) guardingArrival(id string) string {
	return filepath.Join(g.directory, "godwit-arrival-"+id+".json")
}

// write writes a hook with a guard's script.
func (g guards) write(path, id string, when when, script string) error {
	data, err := json.MarshalIndent(hook{
		Version: "1.0.0", When: when, Stages: []string{"createRuntime"},
		Hook: command{Path: "/bin/sh", Args: []string{"sh", "-c", script},
			Env: []string{"PATH=/usr/bin:/bin", shim.GuardVariable + "=" + id}},
	}, "", "  ")
	if err == nil {
		err = os.MkdirAll(g.directory, 0o755)
	}
	if err == nil {
		err = kernel.WriteFileAtomic(path, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("keep Podman from starting container %.12s: %w", id, err)
	}
	return nil
}

// Restart sets whether Podman may restart a container that has ended. The container's policy stays as it
// is.
func (g guards) Restart(_ context.Context, found oci.Container, policy json.RawMessage) error {
	if policy == nil {
		return g.guard(found.ID)
	}
	return g.Gone(found.ID)
}

// unitLinks match the links by which systemd enables the service that starts Podman's containers at boot.
const unitLinks = "/etc/systemd/system/*.wants/podman-restart.service"

// StartsAtBoot reports whether that service would start a container that was running when the machine went
// down (podman-restart.service).
func (g guards) StartsAtBoot(_ oci.Container, told json.RawMessage) bool {
	var policy restartPolicy
	enabled, err := filepath.Glob(unitLinks)
	return err == nil && len(enabled) > 0 && json.Unmarshal(told, &policy) == nil && policy.Name == "always"
}

// Gone ends the guards of a container, by Podman's ID or by that of its arrival.
func (g guards) Gone(id string) error {
	if err := errors.Join(durable.Remove(g.guarding(id)), durable.Remove(g.guardingArrival(id))); err != nil {
		return fmt.Errorf("let Podman start container %.12s: %w", id, err)
	}
	return nil
}
