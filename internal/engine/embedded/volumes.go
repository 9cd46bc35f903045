package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// volumes makes, finds and removes the volumes of this node: directories of the engine, and host
// directories.
type volumes struct {
	catalog *catalog
	paths   paths
}

// checkBinds refuses host directories in which this engine keeps its own files: a definition names those as
// volumes, or not at all.
func (vs *volumes) checkBinds(d engine.Definition) error {
	for _, v := range d.Volumes {
		if v.Sort() == engine.Bind &&
			(engine.Within(v.Source, vs.paths.state) || engine.Within(v.Source, vs.paths.run)) {
			return fmt.Errorf("host directory %.80s: it is below a directory of the container engine; "+
				"name a volume instead", v.Source)
		}
	}
	return nil
}

// VolumePath returns the path of a volume's content on this node, existing or not.
func (vs *volumes) VolumePath(v engine.Volume) (string, error) {
	if v.Sort() == engine.Tmpfs {
		return "", fmt.Errorf("%s is of one container: %w", v, errors.ErrUnsupported)
	}
	if err := errors.Join(validateVolume(v),
		vs.checkBinds(engine.Definition{Volumes: []engine.Volume{v}})); err != nil {
		return "", err
	}
	return container{paths: vs.paths}.volumePath(0, v), nil
}

// makeVolumes makes the missing named volumes of a new container, and returns their directories. Host
// directories must exist.
func (vs *volumes) makeVolumes(d engine.Definition) (made []string, err error) {
	for i, v := range d.Volumes {
		place := vs.paths.of(d.ID).volumePath(i, v)
		switch v.Sort() {
		case engine.Bind:
			info, err := os.Lstat(place)
			if err == nil && !info.IsDir() {
				err = errors.New("it is not a directory")
			}
			if err != nil {
				return made, fmt.Errorf("%s: %w; make the directory first, or name one", v, err)
			}
		case engine.Named:
			err := os.Mkdir(place, 0o755)
			if errors.Is(err, fs.ErrExist) {
				continue
			}
			if err != nil {
				return made, fmt.Errorf("make %s: %w", v, err)
			}
			made = append(made, place)
		}
	}
	return made, nil
}

// reserveVolumes lists the volumes of an arriving container that exist here already, and staying host
// directories that do not exist.
func (vs *volumes) reserveVolumes(all []engine.Container, d engine.Definition) ([]engine.Problem, error) {
	var problems []engine.Problem
	for i, v := range d.Volumes {
		if v.Sort() == engine.Tmpfs {
			continue
		}
		add := func(why, remedy string) {
			problems = append(problems, engine.Problem{What: v.String(), Why: why, Remedy: remedy})
		}
		place := vs.paths.of(d.ID).volumePath(i, v)
		if vs.checkBinds(engine.Definition{Volumes: []engine.Volume{v}}) != nil {
			add("it is below a directory of this node's container engine", "use a volume with a name")
			continue
		}
		if v.Stays {
			if info, err := os.Stat(place); v.Sort() == engine.Bind && (err != nil || !info.IsDir()) {
				add("it is not copied, and there is no such directory at the target",
					"make or mount it there, or have it moved")
			}
			continue
		}
		instead := fmt.Sprintf("; or let the container use the one that exists here: --volumes "+
			"%s=skip", v.Key())
		entries, err := os.ReadDir(place)
		switch {
		case len(engine.Sharing(all, d.ID, v)) > 0:
			add("container "+engine.Sharing(all, d.ID, v)[0]+" on this node has it",
				"remove that container, or give one of them another volume"+instead)
		case err == nil && len(entries) > 0:
			add("the target already has this volume, with files in it",
				"remove it, or move its files elsewhere"+instead)
		case errors.Is(err, unix.ENOTDIR):
			add("on this node it is not a directory", "remove what is there")
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("look at %s: %w", v, err)
		}
	}
	return problems, nil
}

// arrivalRecord records what an arrival will make, before it is made.
func (vs *volumes) arrivalRecord(d engine.Definition, netns string) arrivalRecord {
	r := arrivalRecord{Netns: netns}
	for i, v := range d.Volumes {
		if v.Sort() == engine.Tmpfs || v.Stays && v.Sort() == engine.Bind {
			continue
		}
		made := madeVolume{Path: vs.paths.of(d.ID).volumePath(i, v)}
		if was, err := recordDirectory(made.Path); err == nil {
			if v.Stays {
				continue
			}
			made.Was = was
		}
		for above := filepath.Dir(made.Path); !durable.Exists(above); above = filepath.Dir(above) {
			made.Above = append(made.Above, above)
		}
		r.Made = append(r.Made, made)
	}
	return r
}

// unmakeVolumes removes what an arrival that never ran has made and filled.
func (vs *volumes) unmakeVolumes(ctx context.Context, id string, made []madeVolume) error {
	inUse, err := vs.pathsInUse(ctx, id)
	if err != nil {
		return err
	}
	for _, m := range made {
		if inUse(m.Path) {
			continue // It may have been given to another container since.
		}
		switch {
		case m.Was == nil:
			err = removeVolume(m.Path)
		case m.fills():
			err = errors.Join(files.EmptyTree(m.Path), m.Was.restore(m.Path))
		}
		if err != nil {
			return err
		}
		for _, above := range m.Above {
			_ = os.Remove(above) // unless somebody else has put something there
		}
	}
	return nil
}

// goneWith lists the directories of a container's volumes that have gone with it to another node.
func (vs *volumes) goneWith(ctx context.Context, d engine.Definition, stay []string) (gone []string,
	err error) {
	inUse, err := vs.pathsInUse(ctx, d.ID)
	if err != nil {
		return nil, err
	}
	for i, v := range d.Volumes {
		path := vs.paths.of(d.ID).volumePath(i, v)
		notOurs := v.Sort() == engine.Tmpfs || v.Sort() == engine.Bind && v.ReadOnly
		if notOurs || slices.Contains(stay, v.Key()) || inUse(path) {
			continue
		}
		gone = append(gone, path)
	}
	return gone, nil
}

// pathsInUse returns a function that reports whether another container on this node uses anything in a
// directory.
func (vs *volumes) pathsInUse(ctx context.Context, id string) (func(path string) bool, error) {
	all, err := vs.catalog.List(ctx)
	if err != nil {
		return nil, err
	}
	var used []string
	for _, ctr := range all {
		if ctr.Definition.ID == id {
			continue
		}
		if ctr.State == engine.Damaged {
			return func(string) bool { return true }, nil // It may have any of them.
		}
		for i, v := range ctr.Definition.Volumes {
			used = append(used, vs.paths.of(ctr.Definition.ID).volumePath(i, v))
		}
	}
	return func(path string) bool {
		return slices.ContainsFunc(used,
			func(u string) bool { return engine.Within(u, path) || engine.Within(path, u) })
	}, nil
}

// Volumes lists all named volumes of this node, in order of name.
func (vs *volumes) Volumes(ctx context.Context) ([]engine.StoredVolume, error) {
	entries, err := os.ReadDir(vs.paths.volumes())
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	all, err := vs.catalog.List(ctx)
	if err != nil {
		return nil, err
	}
	var found []engine.StoredVolume
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || !namePattern.MatchString(entry.Name()) {
			continue
		}
		volume := engine.Volume{Name: entry.Name()}
		found = append(found, engine.StoredVolume{
			Name: volume.Name, Path: vs.paths.volume(volume.Name), Changed: info.ModTime(),
			Containers: append([]string{}, engine.Sharing(all, "", volume)...),
		})
	}
	return found, ctx.Err()
}

// RemoveVolume deletes a named volume that no container has.
func (vs *volumes) RemoveVolume(ctx context.Context, name string) error {
	unlockNames := vs.catalog.lock("") // nobody makes a container with the volume meanwhile
	defer unlockNames()
	if !namePattern.MatchString(name) || !durable.Exists(vs.paths.volume(name)) {
		return fmt.Errorf("%w: %.80q; \"godwit volume ls\" lists them", engine.ErrNoVolume, name)
	}
	all, err := vs.catalog.List(ctx)
	if err != nil {
		return err
	}
	if has := engine.Sharing(all, "", engine.Volume{Name: name}); len(has) > 0 {
		return fmt.Errorf("remove volume %s: %w: container %s has it; remove that one first", name,
			engine.ErrBusy, strings.Join(has, ", "))
	}
	return removeVolume(vs.paths.volume(name))
}

// made returns the directories that an arrival has made or filled.
func (vs *volumes) made(r arrivalRecord) []madeVolume {
	made := slices.Clone(r.Made)
	for _, name := range r.Volumes {
		made = append(made, madeVolume{Path: vs.paths.volume(name)})
	}
	return made
}
