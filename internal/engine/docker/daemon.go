package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/kernel"
)

// DaemonConfig is Docker's configuration file. A running Docker can be told to read it again (dockerd(8),
// "Reload configuration"), so it does not restart for a runtime.
type DaemonConfig struct {
	Path    string
	PIDFile string
	Socket  string
	DataDir string // Docker's directory unless its configuration names another one
}

// AddRuntime adds godwit-runc to Docker's runtimes. The rest of the file stays.
func (c DaemonConfig) AddRuntime(path string) error {
	return c.change(func(runtimes map[string]json.RawMessage) error {
		told, err := json.Marshal(map[string]string{"path": path})
		runtimes[Runtime] = told
		return err
	})
}

// Unneeded returns an error if godwit-runc cannot be removed because a container needs it.
func (c DaemonConfig) Unneeded(ctx context.Context) error {
	needed, err := c.needed(ctx)
	if err == nil && len(needed) > 0 {
		err = fmt.Errorf("containers that have come by it need runtime %s: %s; remove or move them first",
			Runtime, strings.Join(needed, ", "))
	}
	return err
}

// RemoveRuntime removes godwit-runc from Docker's runtimes, unless a container needs it.
func (c DaemonConfig) RemoveRuntime(ctx context.Context) error {
	if err := c.Unneeded(ctx); err != nil {
		return err
	}
	return c.change(func(runtimes map[string]json.RawMessage) error {
		delete(runtimes, Runtime)
		return nil
	})
}

// Knows reports whether Docker's configuration has godwit-runc.
func (c DaemonConfig) Knows() (bool, error) {
	all, err := c.read()
	if err != nil || all["runtimes"] == nil {
		return false, err
	}
	runtimes := map[string]json.RawMessage{}
	err = json.Unmarshal(all["runtimes"], &runtimes)
	return runtimes[Runtime] != nil, err
}

// needed lists the containers that only godwit-runc can start. That is known only if Docker runs, or has no
// containers.
func (c DaemonConfig) needed(ctx context.Context) ([]string, error) {
	if _, err := os.Stat(c.Socket); errors.Is(err, fs.ErrNotExist) {
		return nil, c.noContainers()
	}
	api, err := client.New(client.WithHost("unix://" + c.Socket))
	if err != nil {
		return nil, fmt.Errorf("client of Docker: %w", err)
	}
	defer api.Close()
	all, err := api.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("ask Docker for its containers: %w", err)
	}
	var needed []string
	for _, item := range all.Items {
		found, err := api.ContainerInspect(ctx, item.ID, client.ContainerInspectOptions{})
		if err == nil && found.Container.HostConfig != nil && found.Container.HostConfig.Runtime == Runtime {
			needed = append(needed, nameOf(found.Container))
		}
	}
	return needed, nil
}

// noContainers requires a Docker that does not run to have left no containers.
func (c DaemonConfig) noContainers() error {
	all, err := c.read()
	if err != nil {
		return err
	}
	directory := c.DataDir
	if told := all["data-root"]; told != nil {
		if err := json.Unmarshal(told, &directory); err != nil {
			return fmt.Errorf("configuration of Docker %s: data-root: %w", c.Path, err)
		}
	}
	directory = filepath.Join(directory, "containers")
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(entries) > 0 {
		//nolint:staticcheck // its name
		err = fmt.Errorf("Docker does not run, so it is unknown whether its containers in %s need "+
			"runtime %s: start it first", directory, Runtime)
	}
	return err
}

// read reads the file; a missing file has no settings.
func (c DaemonConfig) read() (map[string]json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	data, err := os.ReadFile(c.Path)
	if err == nil && len(strings.TrimSpace(string(data))) > 0 {
		err = json.Unmarshal(data, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("configuration of Docker %s: %w", c.Path, err)
	}
	return all, nil
}

// change changes the runtimes in the file, and makes Docker read it.
func (c DaemonConfig) change(change func(runtimes map[string]json.RawMessage) error) error {
	all, err := c.read()
	if err != nil {
		return err
	}
	runtimes := map[string]json.RawMessage{}
	if all["runtimes"] != nil {
		if err := json.Unmarshal(all["runtimes"], &runtimes); err != nil {
			return fmt.Errorf("configuration of Docker %s: runtimes: %w", c.Path, err)
		}
	}
	if err := change(runtimes); err != nil {
		return err
	}
	if err := c.write(all, runtimes); err != nil {
		return fmt.Errorf("configuration of Docker: %w", err)
	}
	return c.reload()
}

// write replaces the file, or the target of a link. Its mode stays, because the file may contain secrets.
func (c DaemonConfig) write(all, runtimes map[string]json.RawMessage) error {
	delete(all, "runtimes")
	if len(runtimes) > 0 {
		told, err := json.Marshal(runtimes)
		if err != nil {
			return err
		}
		all["runtimes"] = told
	}
	path, mode, err := c.file()
	if err != nil {
		return err
	}
	if len(all) == 0 && path == c.Path {
		return durable.Remove(path)
	}
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return kernel.WriteFileAtomic(path, append(data, '\n'), mode)
}

// file returns the path of the file itself and its mode, even if the file does not exist yet.
func (c DaemonConfig) file() (string, fs.FileMode, error) {
	path, err := filepath.EvalSymlinks(c.Path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(c.Path); err == nil {
			return "", 0, fmt.Errorf("%s is a link to nothing", c.Path)
		}
		return c.Path, 0o644, nil
	}
	if err != nil {
		return "", 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", 0, err
	}
	return path, info.Mode().Perm(), nil
}

// reload makes a running Docker read its configuration. A stopped Docker reads it when it starts.
func (c DaemonConfig) reload() error {
	pid, err := c.process()
	if err != nil || pid == 0 {
		return err
	}
	if err := unix.Kill(pid, unix.SIGHUP); err != nil {
		return fmt.Errorf("have Docker read its configuration: %w", err)
	}
	return nil
}

// Runs reports whether a Docker is running that has been told of a change.
func (c DaemonConfig) Runs() (bool, error) {
	pid, err := c.process()
	return pid != 0, err
}

// process returns the PID of Docker; 0 if it does not run.
func (c DaemonConfig) process() (int, error) {
	data, err := os.ReadFile(c.PIDFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	pid, convErr := strconv.Atoi(strings.TrimSpace(string(data)))
	if err = errors.Join(err, convErr); err != nil || pid <= 1 {
		return 0, fmt.Errorf("find Docker's process by %s: %w", c.PIDFile, errors.Join(err, fs.ErrInvalid))
	}
	process, err := kernel.ReadProcess(pid)
	if err != nil || process.Name != "dockerd" {
		return 0, nil // the PID file of a Docker that has ended
	}
	return pid, nil
}
