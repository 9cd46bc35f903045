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

	"github.com/godwit/godwit/internal/kernel"
)

// DaemonConfig is Docker's configuration file, and how the Docker that has it is told to read it again (dockerd(8), "Reload
// configuration"): it does not restart for a runtime.
type DaemonConfig struct {
	Path    string
	PIDFile string
	Socket  string
}

// AddRuntime makes godwit-runc known to Docker. All else in the file stays.
func (c DaemonConfig) AddRuntime(path string) error {
	return c.change(func(runtimes map[string]json.RawMessage) error {
		told, err := json.Marshal(map[string]string{"path": path})
		runtimes[Runtime] = told
		return err
	})
}

// RemoveRuntime takes godwit-runc out again, unless a container needs it.
func (c DaemonConfig) RemoveRuntime(ctx context.Context) error {
	needed, err := c.needed(ctx)
	if err != nil {
		return err
	}
	if len(needed) > 0 {
		return fmt.Errorf("containers that have come by it need runtime %s: %s; remove or move them first", Runtime, strings.Join(needed, ", "))
	}
	return c.change(func(runtimes map[string]json.RawMessage) error {
		delete(runtimes, Runtime)
		return nil
	})
}

// needed lists the containers that only godwit-runc can start. A Docker that is not there has none.
func (c DaemonConfig) needed(ctx context.Context) ([]string, error) {
	if _, err := os.Stat(c.Socket); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
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

// change changes the runtimes in the file, and has Docker read it.
func (c DaemonConfig) change(change func(runtimes map[string]json.RawMessage) error) error {
	all, runtimes := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	data, err := os.ReadFile(c.Path)
	if err == nil && len(strings.TrimSpace(string(data))) > 0 {
		err = json.Unmarshal(data, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("configuration of Docker %s: %w", c.Path, err)
	}
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

func (c DaemonConfig) write(all, runtimes map[string]json.RawMessage) error {
	delete(all, "runtimes")
	if len(runtimes) > 0 {
		told, err := json.Marshal(runtimes)
		if err != nil {
			return err
		}
		all["runtimes"] = told
	}
	if len(all) == 0 {
		return removeIfThere(c.Path)
	}
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o755); err != nil {
		return err
	}
	return kernel.WriteFileAtomic(c.Path, append(data, '\n'), 0o644)
}

// reload has a Docker that runs read its configuration.
func (c DaemonConfig) reload() error {
	data, err := os.ReadFile(c.PIDFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it reads it when it starts
	}
	pid, convErr := strconv.Atoi(strings.TrimSpace(string(data)))
	if err = errors.Join(err, convErr); err != nil || pid <= 1 {
		return fmt.Errorf("find Docker's process by %s: %w", c.PIDFile, errors.Join(err, fs.ErrInvalid))
	}
	process, err := kernel.ReadProcess(pid)
	if err != nil || process.Name != "dockerd" {
		return nil // the file is of one that has ended
	}
	if err := unix.Kill(pid, unix.SIGHUP); err != nil {
		return fmt.Errorf("have Docker read its configuration: %w", err)
	}
	return nil
}
