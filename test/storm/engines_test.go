package storm

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/godwit/godwit/internal/lab"
)

// via is the engine of a container, as the prefix in references.
type via string

const (
	embedded   via = ""
	docker     via = "docker"
	podman     via = "podman"
	containerd via = "containerd"
)

// engines of a storm.
func engines(long bool) []via {
	if long {
		return []via{embedded, docker, podman, containerd}
	}
	return []via{embedded, docker}
}

// bringUp prepares the engine of a node, with the image.
func (v via) bringUp(ctx context.Context, up *lab.Lab, node, image string) error {
	var err error
	load := []string{string(v), "load", "--input", image}
	switch v {
	case embedded:
		load = []string{"godwit", "image", "load", image}
	case docker:
		err = up.Engines().StartDocker(ctx, node)
	case podman:
		if err = up.Engines().PreparePodman(ctx, node); err == nil {
			_, err = up.Exec(ctx, node, "godwit", "engine", "setup", "podman")
		}
	case containerd:
		if err = up.Engines().StartContainerd(ctx, node); err == nil {
			_, err = up.Exec(ctx, node, "godwit", "engine", "setup", "containerd")
		}
		load = []string{"ctr", "images", "import", image}
	}
	if err == nil {
		_, err = up.Exec(ctx, node, load...)
	}
	if err != nil {
		return fmt.Errorf("%s on %s: %w", v, node, err)
	}
	return nil
}

// run returns the command that starts a container that beats.
func (v via) run(name, mark, beats string, program ...string) []string {
	environment := variable + "=" + mark
	if v == containerd {
		mount := "type=bind,src=" + beats + ",dst=/beats,options=rbind:rw"
		args := []string{"ctr", "run", "--detach", "--null-io", "--env", environment, "--mount", mount}
		return append(append(args, image, name), program...)
	}
	args := []string{"godwit", "run", "-d"}
	if v != embedded {
		args = []string{string(v), "run", "--detach", "--network", "none"}
	}
	args = append(args, "--name", name, "-e", environment, "-v", beats+":/beats", image)
	return append(args, program...)
}

// interference returns all commands to the engine for a copy that has left.
func (v via) interference(name string) [][]string {
	switch v {
	case embedded:
		return [][]string{{"godwit", "stop", "--time", "1s", name}, {"godwit", "rm", "--force", name}}
	case docker, podman:
		cli := string(v)
		return [][]string{
			{cli, "start", name}, {cli, "restart", "--time", "1", name}, {cli, "stop", "--time", "1", name},
			{cli, "kill", name}, {cli, "rm", "--force", name},
		}
	case containerd:
	}
	return [][]string{
		{"ctr", "task", "start", "--detach", "--null-io", name},
		{"ctr", "task", "kill", "--signal", "KILL", name},
		{"ctr", "task", "rm", "--force", name}, {"ctr", "container", "rm", name},
	}
}

// String returns the name of the engine.
func (v via) String() string {
	if v == embedded {
		return "embedded"
	}
	return string(v)
}

// lists returns the engine's commands for lists.
func (v via) lists() [][]string {
	switch v {
	case embedded:
		return [][]string{{"godwit", "ps", "--all"}, {"godwit", "volume", "ls"}}
	case docker, podman:
		return [][]string{{string(v), "ps", "--all"}, {string(v), "volume", "ls"}}
	case containerd:
	}
	return [][]string{
		{"ctr", "containers", "ls"}, {"ctr", "tasks", "ls"},
		{"ctr", "snapshots", "ls"}, {"ctr", "leases", "ls"},
	}
}

// reference returns Godwit's name for a container of the engine.
func (v via) reference(name string) string {
	if v == embedded {
		return name
	}
	return string(v) + ":" + name
}

// bringUp gives each node its engines and the images.
func bringUp(ctx context.Context, up *lab.Lab, directory string) error {
	world.lab = up
	if err := up.Client(client, world.nodes[0], lab.Link{}); err != nil {
		return err
	}
	for _, node := range world.nodes {
		for _, v := range engines(isLong()) {
			if err := v.bringUp(ctx, up, node, filepath.Join(directory, "image.tar")); err != nil {
				return err
			}
		}
		if _, err := up.Exec(ctx, node, "godwit", "image", "load", world.redis); err != nil {
			return fmt.Errorf("load an image: %w", err)
		}
	}
	return nil
}
