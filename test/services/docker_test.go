package services

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// network is a network of Docker that Godwit routes, so that clients reach its containers on any node.
const network = "services"

// docker is each node's own Docker, which starts with the first image that a service needs.
type docker struct{ started sync.Map }

func (*docker) name() string   { return "docker" }
func (*docker) prefix() string { return "docker:" }

// load also starts Docker. In a lab, the clients' node has a Docker without containers, too: only nodes on
// which the network is set up route its addresses. A separate name keeps the first image of a node, so that
// the common layer of all services is loaded once.
func (d *docker) load(ctx context.Context, node string, i image) error {
	_, later := d.started.Load(node)
	for _, each := range world.dockerNodes(node) {
		if _, started := d.started.LoadOrStore(each, true); started {
			continue
		}
		if err := world.startDocker(ctx, each); err != nil {
			return err
		}
	}
	if err := loadInto(ctx, node, i, "docker", "load"); err != nil || later {
		return err
	}
	_, err := world.Exec(ctx, node, "docker", "tag", i.reference(), "localhost/first:latest")
	return err
}

func (*docker) run(ctx context.Context, node string, s service, i image) error {
	flags, err := asUsers(s, i)
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"docker", "run", "--detach", "--name", s.name, "--network", network},
		flags, s.flags, []string{i.reference()}, s.command)
	_, err = world.Exec(ctx, node, args...)
	return err
}

func (*docker) address(ctx context.Context, node, container string) (string, error) {
	out, err := world.Exec(ctx, node, "docker", "inspect", "--format",
		"{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", container)
	return strings.TrimSpace(out), err
}

func (*docker) logs(ctx context.Context, node, container string) (string, error) {
	return world.Exec(ctx, node, "sh", "-c", `exec docker logs --tail 30 "$1" 2>&1`, "sh", container)
}

func (*docker) exec(ctx context.Context, node, container string, command ...string) (string, error) {
	return world.Exec(ctx, node, append([]string{"docker", "exec", container}, command...)...)
}

func (d *docker) remove(ctx context.Context, node, container string, i image) error {
	if _, started := d.started.Load(node); !started {
		return nil
	}
	for _, each := range [][2][]string{
		{{"docker", "ps", "--all", "--quiet", "--filter", "name=^" + container + "$"},
			{"docker", "rm", "--force", container}},
		{{"docker", "images", "--quiet", i.reference()}, {"docker", "rmi", "--force", i.reference()}},
	} {
		there, err := world.Exec(ctx, node, each[0]...)
		if err != nil {
			return err
		}
		if strings.TrimSpace(there) == "" {
			continue
		}
		if _, err := world.Exec(ctx, node, each[1]...); err != nil {
			return err
		}
	}
	return nil
}
