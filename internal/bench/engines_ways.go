package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/migration"
)

// outsideEngine is an engine that a node has besides Godwit's, by its command line.
type outsideEngine interface {
	name() string
	bringUp(ctx context.Context, node string) error
	// command makes a command line of the engine.
	command(args ...string) []string
	// remove is the command that removes a container at once.
	remove(container string) []string
	// checkpointed moves a container in the engine's own way, and tells what that took.
	checkpointed(ctx context.Context, container, from string, create []string) ([]measurement, error)
}

// engineWay is what the ways have in common that move containers of other engines. They have no network: what it takes is the
// engine's part.
type engineWay struct {
	bed      *bed
	engine   outsideEngine
	title    string
	workload containerWorkload
	archive  string // the image
	image    string // as the engine calls it
	at       string
}

func (e *engineWay) name() string { return e.title }

func (e *engineWay) container() string {
	return "bench-" + strings.NewReplacer(", ", "-", " ", "-").Replace(e.title)
}

// create is the command line that makes such a container; verb: run or create.
func (e *engineWay) create(verb ...string) []string {
	args := append(e.engine.command(verb...), "--name", e.container(), "--network", "none")
	for _, variable := range e.workload.env {
		args = append(args, "--env", variable)
	}
	return append(append(args, e.image), e.workload.command()...)
}

func (e *engineWay) start(ctx context.Context) error {
	for _, node := range nodes {
		out, err := e.bed.exec(ctx, node, e.engine.command("load", "--quiet", "--input", e.archive)...)
		if err != nil {
			return err
		}
		_, name, found := strings.Cut(strings.TrimSpace(out), ": ") // Loaded image: NAME
		if !found {
			return fmt.Errorf("%s load says %.200q", e.engine.name(), out)
		}
		e.image = name
	}
	if _, err := e.bed.exec(ctx, e.at, e.create("run", "--detach")...); err != nil {
		return err
	}
	if e.workload.memory == nil {
		return nil
	}
	out, err := e.bed.exec(ctx, e.at, e.engine.command("inspect", "--format", "{{.State.Pid}}", e.container())...)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		return fmt.Errorf("the process of %s: %w", e.container(), err)
	}
	return e.bed.awaitMemory(ctx, e.at, pid, e.workload.memory.Size)
}

// stop also has a program look at all of its memory.
func (e *engineWay) stop(ctx context.Context) (err error) {
	if e.workload.memory != nil {
		_, err = e.bed.exec(ctx, e.at, e.engine.command("stop", "--time", "60", e.container())...)
		if err == nil {
			var log string
			if log, err = e.bed.exec(ctx, e.at, e.engine.command("logs", e.container())...); err == nil {
				err = judgeLog(log)
			}
		}
	}
	_, removeErr := e.bed.exec(ctx, e.at, e.engine.remove(e.container())...)
	_, _ = e.bed.exec(ctx, other(e.at), e.engine.remove(e.container())...) // there is one if a way of the engine's own broke off
	return errors.Join(err, removeErr)
}

// movedWay is Godwit's.
type movedWay struct{ engineWay }

func (m *movedWay) move(ctx context.Context) ([]measurement, error) {
	out, err := m.bed.exec(ctx, m.at, program, "migrate", m.engine.name()+":"+m.container(), other(m.at),
		"--mode", string(migration.PreCopy), "--wait", "--json")
	if err != nil {
		return nil, err
	}
	var report migration.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, fmt.Errorf("report of the migration: %w", err)
	}
	m.at = report.Target
	create := 0.0 // the step begins while the source stages, and goes on after that
	for _, phase := range report.Phases {
		if phase.Name == string(migration.StepArrive) {
			create += phase.Seconds
		}
	}
	return append(fromReport(report), measurement{metricCreate, create}), nil
}

// checkpointWay is the engine's own.
type checkpointWay struct{ engineWay }

func (c *checkpointWay) move(ctx context.Context) ([]measurement, error) {
	measured, err := c.engine.checkpointed(ctx, c.container(), c.at, c.create("create"))
	if err != nil {
		return nil, err
	}
	from := c.at
	c.at = other(from)
	_, err = c.bed.exec(ctx, from, c.engine.remove(c.container())...)
	return measured, err
}

// tookOwn is what an engine's own way took.
func tookOwn(checkpoint, copied, restore, size float64) []measurement {
	return []measurement{
		{metricDowntime, checkpoint + copied + restore}, {metricTotal, checkpoint + copied + restore},
		{metricCheckpoint, checkpoint}, {metricCopy, copied}, {metricRestore, restore}, {metricSent, size},
	}
}

// docker is the node's Docker.
type docker struct{ bed *bed }

func (docker) name() string { return "docker" }

// bringUp has Docker allow its checkpoints, which are an experiment of its. Its runc finds CRIU where Docker was started.
func (d docker) bringUp(ctx context.Context, node string) error {
	path := os.Getenv("PATH")
	if err := os.Setenv("PATH", filepath.Dir(d.bed.criu.Path)+":"+path); err != nil {
		return err
	}
	return errors.Join(d.bed.lab.StartDocker(ctx, node, "--experimental"), os.Setenv("PATH", path))
}

func (docker) command(args ...string) []string { return append([]string{"docker"}, args...) }

func (docker) remove(container string) []string {
	return []string{"docker", "rm", "--force", container}
}

// checkpointed is docker checkpoint, a copy, and docker start --checkpoint. Docker 20.10 takes a checkpoint from nowhere but its own directory.
func (d docker) checkpointed(ctx context.Context, container, from string, create []string) ([]measurement, error) {
	to := other(from)
	_, _ = d.bed.exec(ctx, to, d.remove(container)...) // of a move before that broke off
	if _, err := d.bed.exec(ctx, to, create...); err != nil {
		return nil, err
	}
	there, err := d.checkpoints(ctx, to, container)
	if err != nil {
		return nil, err
	}
	here, err := d.checkpoints(ctx, from, container)
	if err != nil {
		return nil, err
	}
	checkpoint, err := d.bed.time(ctx, from, "docker", "checkpoint", "create", container, dockerCheckpoint)
	if err != nil {
		return nil, err
	}
	copied, size, err := d.bed.send(ctx, from, here)
	if err != nil {
		return nil, err
	}
	placed, err := d.bed.time(ctx, to, "cp", "--archive", incoming+"/"+dockerCheckpoint, there)
	if err != nil {
		return nil, err
	}
	restore, err := d.bed.time(ctx, to, "docker", "start", "--checkpoint", dockerCheckpoint, container)
	if err == nil {
		_, err = d.bed.exec(ctx, to, "rm", "--recursive", there) // or the next one could not have its name
	}
	return tookOwn(checkpoint, copied+placed, restore, size), err
}

// dockerCheckpoint is the checkpoint's name.
const dockerCheckpoint = "bench"

// checkpoints is where Docker has the checkpoint of a container.
func (d docker) checkpoints(ctx context.Context, node, container string) (string, error) {
	out, err := d.bed.exec(ctx, node, "sh", "-c",
		`echo "$(docker info --format '{{.DockerRootDir}}')/containers/$(docker inspect --format '{{.Id}}' "$0")/checkpoints"`, container)
	dir := strings.TrimSpace(out)
	if err == nil {
		_, err = d.bed.exec(ctx, node, "mkdir", "--parents", dir)
	}
	return dir + "/" + dockerCheckpoint, err
}

// podman is the node's Podman.
type podman struct{ bed *bed }

func (podman) name() string { return "podman" }

func (p podman) bringUp(ctx context.Context, node string) error {
	if err := p.bed.lab.PreparePodman(ctx, node); err != nil {
		return err
	}
	_, err := p.bed.exec(ctx, node, program, "engine", "setup", "podman")
	return err
}

func (podman) command(args ...string) []string { return append([]string{"podman"}, args...) }

func (podman) remove(container string) []string {
	return []string{"podman", "rm", "--force", "--time=0", container}
}

// checkpointed is podman container checkpoint into an archive, a copy, and a restore from it.
func (p podman) checkpointed(ctx context.Context, container, from string, _ []string) ([]measurement, error) {
	return p.bed.podmanMove(ctx, from, p.command(), container)
}
