package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/godwit/godwit/internal/kernel"
)

// Dir is an agent's state directory and run directory, locked by this process.
type Dir struct {
	// Incarnation is the name of this state: no other state has it, and no state that was put in its place.
	Incarnation string
	// Renewed is why this incarnation is new, for the log; empty: it is the same as last time.
	Renewed string

	locks []*lock
}

// Open locks both directories, creates them if needed, and reads the incarnation. If another process has
// them, it returns ErrLocked and has changed nothing.
func Open(stateDir, runDir string) (*Dir, error) {
	d := &Dir{}
	for _, dir := range []string{stateDir, runDir} {
		if err := d.take(dir); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	collectGarbage(stateDir)
	if err := d.identify(stateDir, runDir, machineIDFile); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// recordPlaces are the directories with records, below the state directory. Deeper directories and volumes
// hold the content of containers and images.
var recordPlaces = []string{".", "*", "*/*", "engines/*/*", "images/*/*"}

// collectGarbage removes unfinished records of killed agents. A record that cannot be removed does no harm.
func collectGarbage(stateDir string) {
	for _, place := range recordPlaces {
		// the patterns are well-formed, and there is no other error
		dirs, _ := fs.Glob(os.DirFS(stateDir), place)
		for _, dir := range dirs {
			if path.Dir(dir) != "volumes" {
				_ = kernel.RemoveUnfinished(filepath.Join(stateDir, dir))
			}
		}
	}
}

// Lock locks the state directory alone, for a command that changes it while no agent runs. Error: ErrLocked.
func Lock(stateDir string) (*Dir, error) {
	d := &Dir{}
	if err := d.take(stateDir); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Dir) take(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("directory of the agent: %w", err)
	}
	taken, err := take(dir)
	if err != nil {
		return err
	}
	d.locks = append(d.locks, taken)
	return nil
}

// Close unlocks the directories.
func (d *Dir) Close() error {
	var errs []error
	for _, one := range d.locks {
		errs = append(errs, one.release())
	}
	d.locks = nil
	return errors.Join(errs...)
}
