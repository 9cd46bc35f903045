package containers

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/proof"
)

// define makes a container's definition from what the user asked for and what the image says.
func define(images Images, request *api.RunRequest) (engine.Definition, error) {
	found, err := images.Resolve(request.Image)
	if err != nil {
		return engine.Definition{}, err
	}
	id := randomHex(32)
	definition := engine.Definition{
		ID: id, Name: request.Name, Image: request.Image, ImageID: found.ID, Layers: found.Layers,
		Dir: request.Dir, User: request.User, Hostname: request.Hostname, TTY: request.Tty,
		ReadOnly: request.ReadOnly,
		Limits:   engine.Limits{MemoryBytes: request.MemoryBytes, CPUs: request.Cpus, Pids: request.Pids},
		Created:  time.Now().UTC(),
	}
	if definition.Name == "" {
		definition.Name = madeUpName(id)
	}
	if err := migration.CheckName(definition.Name); err != nil {
		return definition, fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	if definition.Hostname == "" {
		definition.Hostname = definition.Name
	}
	definition.Volumes = volumesOf(request)
	if definition.Labels, err = parseLabels(request.Labels); err != nil {
		return definition, err
	}
	return definition, applyImage(&definition, request, found)
}

// volumesOf are the volumes that a user wants for a new container.
func volumesOf(request *api.RunRequest) []engine.Volume {
	var volumes []engine.Volume
	for _, v := range request.Volumes {
		one := proof.DecodeVolume(v)
		one.Engine = "" // Godwit's own: it is to run the container
		volumes = append(volumes, one)
	}
	return volumes
}

func applyImage(definition *engine.Definition, request *api.RunRequest, found image.Image) error {
	entrypoint, args := found.Config.Entrypoint, request.Args
	if request.Entrypoint != "" {
		entrypoint = []string{request.Entrypoint}
	} else if len(args) == 0 {
		args = found.Config.Cmd
	}
	definition.Args = append(append([]string{}, entrypoint...), args...)
	if len(definition.Args) == 0 {
		return fmt.Errorf("%w: image %s has no default command: name a command", api.ErrInvalid,
			request.Image)
	}
	definition.Env = mergeEnv(found.Config.Env, request.Env)
	if definition.Dir == "" {
		definition.Dir = found.Config.WorkingDir
	}
	if definition.Dir == "" {
		definition.Dir = "/"
	}
	if definition.User == "" {
		definition.User = found.Config.User
	}
	return applyLife(definition, request, found.Config)
}

// noHealth as the command says that there is no health check, whatever the image says.
const noHealth = "none"

// applyLife finds out how a container is stopped, and when one that was started counts as healthy.
func applyLife(definition *engine.Definition, request *api.RunRequest, config image.Config) error {
	definition.StopSignal = cmp.Or(request.StopSignal, config.StopSignal)
	definition.Restart = request.Restart
	if _, err := engine.ParseRestartPolicy(definition.Restart); err != nil {
		return fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	definition.StopTimeout, definition.StartTimeout = request.StopTimeoutSeconds, request.StartTimeoutSeconds
	if _, err := engine.ParseSignal(definition.StopSignal); err != nil {
		return fmt.Errorf("%w: stop signal: %w", api.ErrInvalid, err)
	}
	for what, seconds := range map[string]float64{"stop": definition.StopTimeout,
		"start": definition.StartTimeout} {
		if err := engine.CheckLifeTimeout(seconds); err != nil {
			return fmt.Errorf("%w: %s timeout: %w", api.ErrInvalid, what, err)
		}
	}
	health := healthOf(config.Health)
	switch request.HealthCommand {
	case "":
	case noHealth:
		health.Command = nil
	default:
		health.Command = []string{"/bin/sh", "-c", request.HealthCommand}
	}
	health.Interval = cmp.Or(request.HealthIntervalSeconds, health.Interval)
	health.Timeout = cmp.Or(request.HealthTimeoutSeconds, health.Timeout)
	health.Retries = cmp.Or(int(request.HealthRetries), health.Retries)
	if len(health.Command) == 0 && (request.HealthIntervalSeconds > 0 || request.HealthTimeoutSeconds > 0 ||
		request.HealthRetries > 0) {
		return fmt.Errorf("%w: image %s has no health check, and none was given: give --health-cmd, or "+
			"omit the times of health checks", api.ErrInvalid, request.Image)
	}
	if len(health.Command) == 0 {
		return nil
	}
	if err := health.Check(); err != nil {
		return fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	definition.Health = &health
	return nil
}

// mergeEnv lets the user's variables replace the image's.
func mergeEnv(lists ...[]string) []string {
	merged := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, list := range lists {
		for _, entry := range list {
			name, _, _ := strings.Cut(entry, "=")
			replaced := false
			for i, have := range merged {
				if strings.HasPrefix(have, name+"=") {
					merged[i], replaced = entry, true
				}
			}
			if !replaced {
				merged = append(merged, entry)
			}
		}
	}
	return merged
}

// healthOf is the health check of an image. What it says too much of is taken for as much as is
// possible: it must still run.
func healthOf(own *image.Health) engine.Health {
	if own == nil {
		return engine.Health{}
	}
	bounded := func(d time.Duration) float64 { return min(max(d, 0), engine.MaxLifeTimeout).Seconds() }
	return engine.Health{
		Command: own.Command, Interval: bounded(own.Interval), Timeout: bounded(own.Timeout),
		StartPeriod: bounded(own.StartPeriod),
		Retries:     min(max(own.Retries, 0), engine.MaxHealthRetries),
	}
}

func parseLabels(labels []string) (map[string]string, error) {
	parsed := map[string]string{}
	for _, label := range labels {
		name, value, found := strings.Cut(label, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("%w: label %q: want NAME=VALUE", api.ErrInvalid, label)
		}
		parsed[name] = value
	}
	return parsed, nil
}

func randomHex(bytes int) string {
	id := make([]byte, bytes)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	return hex.EncodeToString(id)
}

// madeUpName is easier to remember than an id.
func madeUpName(id string) string {
	birds := []string{"plover", "curlew", "dunlin", "knot", "tern", "whimbrel", "sanderling", "turnstone",
		"stint", "ruff"}
	return birds[int(id[0])%len(birds)] + "-" + id[:6]
}
