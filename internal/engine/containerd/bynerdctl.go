package containerd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	types "github.com/containernetworking/cni/pkg/types/100"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd/nerdctl"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
)

// A container that nerdctl has started is a container of containerd, surrounded by objects that package
// nerdctl knows.

var _ oci.FileMigrator = (*adapter)(nil)

// madeByNerdctl is what another node sends about such a container besides its labels.
type madeByNerdctl struct {
	Started time.Time `json:"started"`
}

func (t told) byNerdctl() bool { return nerdctl.Has(t.container.GetLabels()) }

func (t told) place() nerdctl.Place { return nerdctlPlace(t.namespace, t.container.GetID()) }

func nerdctlPlace(namespace, id string) nerdctl.Place {
	return nerdctl.Place{Socket: DefaultSocket, Namespace: namespace, ID: id}
}

// titleOf returns a container's name for people: the name that nerdctl has given it, if any.
func titleOf(namespace, id string, labels map[string]string) string {
	if name := nerdctl.Name(labels); nerdctl.Has(labels) && name != "" {
		id = name
	}
	return nameOf(engineID(namespace, id))
}

// keptOf returns a function that recognises mounts of files that nerdctl keeps for a container with these
// labels.
func keptOf(namespace, id string, labels map[string]string) func(specs.Mount) bool {
	if !nerdctl.Has(labels) {
		return func(specs.Mount) bool { return false }
	}
	return nerdctlPlace(namespace, id).Keeps
}

// nerdctlObstacles lists nerdctl's settings that cannot move, and returns the specification without
// nerdctl's hooks.
func (t told) nerdctlObstacles() ([]engine.Problem, specs.Spec) {
	spec, labels := t.spec, t.container.GetLabels()
	found := nerdctl.LabelObstacles(t.place(), labels, spec.Annotations)
	if t.byNerdctl() {
		found = append(found, nerdctl.HookObstacles(t.place(), spec.Hooks, labels, t.process.GetStdout())...)
		spec.Hooks = nil
	}
	return found, spec
}

// reserveNerdctl lists the obstacles to a container that is nerdctl's, or has labels as if it were.
func reserveNerdctl(ctx context.Context, d engine.Definition, x extra) []engine.Problem {
	place := nerdctlPlace(x.Namespace, x.ID)
	found := nerdctl.LabelObstacles(place, d.Labels, x.Spec.Annotations)
	if !nerdctl.Has(d.Labels) || len(found) > 0 {
		return found
	}
	found = append(nerdctl.Readiness(ctx), nerdctl.Taken(place, d.Labels)...)
	named, err := nerdctl.Network(d.Labels)
	if onOne := named != "none" && named != "host"; err != nil || onOne != d.Network.OnBridge() || onOne &&
		named != d.Network.Bridge {
		return append(found, engine.Problem{What: "network " + named + " of nerdctl",
			Why: "nerdctl's labels name this network, but the container is not on it", Remedy: "create " +
				"the container again"})
	}
	if !d.Network.OnBridge() {
		return found
	}
	// nerdctl's hook makes the default network if it is missing, and would then wait for itself for ever.
	if _, err := loadList(nerdctl.DefaultNetwork, listsOf(x.Namespace, d.Labels)); err != nil {
		found = append(found, engine.Problem{
			What: "network " + nerdctl.DefaultNetwork + " of nerdctl",
			Why:  "nerdctl has not made its default network on this node: " + err.Error(),
			Remedy: "start any container on it once, or copy " +
				filepath.Join(conflists, "nerdctl-bridge.conflist") + " from the other node",
		})
	}
	return found
}

// logOf returns where containerd is to send an arriving container's output: to this node's nerdctl if the
// container is nerdctl's.
func (l logFiles) logOf(namespace, id string, labels map[string]string) string {
	if !nerdctl.Has(labels) {
		return "file://" + l.path(engineID(namespace, id))
	}
	program, _ := nerdctl.Find() // without nerdctl no container is made
	return nerdctl.LogURI(program, nerdctlPlace(namespace, id))
}

// makeNerdctls makes an arriving container belong to this node's nerdctl, the only program that runs as
// root for it.
func makeNerdctls(made *containers.Container, spec *specs.Spec, place nerdctl.Place) error {
	program, err := nerdctl.Find()
	if err != nil {
		return err
	}
	nerdctl.SetLog(made.GetLabels(), program, place)
	spec.Annotations = nerdctl.Annotations(made.GetLabels(), spec.Annotations)
	spec.Hooks = nerdctl.Hooks(program, place, shim.GuardVariable+"=1") // Connect makes its network
	return nil
}

// keepForNerdctl makes the files that nerdctl keeps for an arriving container.
func keepForNerdctl(ctx context.Context, d engine.Definition, x extra) error {
	program, err := nerdctl.Find()
	if err == nil {
		err = nerdctl.Make(ctx, program, nerdctlPlace(x.Namespace, x.ID), d.Labels, x.Nerdctl.Started)
	}
	if err != nil {
		return fmt.Errorf("nerdctl's records of the container: %w", err)
	}
	return nil
}

// Keep copies the files that nerdctl keeps for a container and to which its processes may have written.
func (a *adapter) Keep(found oci.Container, directory string) error {
	if t := native(found); t.byNerdctl() {
		return nerdctl.Keep(t.place(), directory)
	}
	return nil
}

// Bring installs such files.
func (a *adapter) Bring(engineID, directory string, d engine.Definition) error {
	if !nerdctl.Has(d.Labels) {
		return nil
	}
	return nerdctl.Bring(nerdctlPlace(splitEngineID(engineID)), directory)
}

// noteHosts records for nerdctl what plugins have made in a container's network.
func noteHosts(engineID string, d engine.Definition, made *types.Result) error {
	if !nerdctl.Has(d.Labels) {
		return nil
	}
	if made == nil {
		return errors.New("CNI has no record of the container's network, which nerdctl needs to tell " +
			"other containers about it")
	}
	networks := map[string]*types.Result{d.Network.Bridge: made}
	return nerdctl.NoteHosts(nerdctlPlace(splitEngineID(engineID)), d.Labels, networks)
}

// listsOf returns the directories of lists that the program looks in that has started a container with
// these labels.
func listsOf(namespace string, labels map[string]string) []string {
	if nerdctl.Has(labels) {
		return []string{conflists, filepath.Join(conflists, namespace)}
	}
	return []string{conflists}
}
