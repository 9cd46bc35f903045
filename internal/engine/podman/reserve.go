package podman

import (
	"context"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// Reserve lists the obstacles to making this container here.
func (a *adapter) Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	x, err := decode(d)
	if err != nil {
		return nil, err
	}
	problems := obstacles(x.Config, x.Host, x.Mounts)
	problems = append(problems, a.runtimeObstacles(ctx)...)
	for _, look := range []func(context.Context, engine.Definition, extra) ([]engine.Problem,
		error){a.volumeObstacles, a.addressObstacles} {
		found, err := look(ctx, d, x)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

// Readiness checks the Podman of this node. Error: engine.ErrAway.
func Readiness(ctx context.Context) (engine.Readiness, error) {
	a := newAdapter("")
	if err := a.Away(); err != nil {
		return engine.Readiness{Title: a.Title()}, err
	}
	about, err := askInfo(ctx)
	return engine.Readiness{Title: a.Title(), Version: about.Version.Version,
		Problems: a.runtimeObstacles(ctx)}, err
}

// runtimeObstacles requires Podman to have godwit-runc as a runtime, to keep files as this package expects,
// and to obey guards.
func (a *adapter) runtimeObstacles(ctx context.Context) []engine.Problem {
	told, err := askInfo(ctx, "--runtime="+oci.Runtime)
	if err != nil {
		return []engine.Problem{{
			What: "runtime " + oci.Runtime + " of Podman", Why: "Podman does not know it: " + err.Error(),
			Remedy: "godwit engine setup podman",
		}}
	}
	p := problems(engine.TooOld(title, told.Version.Version, oldest))
	p.add(told.Store.Driver != "overlay", "storage driver "+told.Store.Driver+" of Podman",
		"only overlay is supported", "use overlay")
	p.add(told.Store.GraphRoot != DefaultRoot, "storage of Podman in "+told.Store.GraphRoot,
		"Godwit looks for it in "+DefaultRoot, "keep it there")
	return append(p, guardObstacles(ctx, a.guards.directory)...)
}
