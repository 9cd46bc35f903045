package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab"
)

// Container is Godwit with a container of a study, and its client.
type Container struct {
	*moves.Godwit
	app    App
	Client Client
}

// NewContainer returns a container of a service. archive has its image.
func NewContainer(b *testbed.Bed, a App, archive string) *Container {
	return &Container{
		Godwit: moves.NewGodwit(b, "study", moves.Workload{Image: a.Image, Args: a.Args}, archive), app: a,
	}
}

// Start makes the container on the first node; the nodes in have get its image.
func (g *Container) Start(ctx context.Context, have ...string) error {
	for _, node := range have {
		if _, err := g.Bed.Exec(ctx, node, testbed.Program, "image", "load", g.Archive); err != nil {
			return err
		}
	}
	if err := g.Run(ctx, g.app.RunFlags()...); err != nil {
		return err
	}
	container, err := g.Inspect(ctx)
	if err != nil {
		return err
	}
	if err := g.Bed.Lab.Client(g.ClientMachine(), testbed.UsersNode, lab.Link{}); err != nil {
		return err
	}
	g.HasClient = true
	address := netip.AddrPortFrom(container.Definition.Network.Address, uint16(g.app.Port)).String()
	g.Client, err = g.app.Connect(ctx, func(ctx context.Context) (net.Conn, error) {
		return g.Bed.Lab.Dial(ctx, g.ClientMachine(), g.app.Network, address)
	}, true)
	if err != nil {
		return fmt.Errorf("client of %s: %w", g.app.Name, err)
	}
	return AwaitAnswers(ctx, g.Client)
}

// Volume is the name of the volume of a workload that has one.
const Volume = "bench-study"

// Check verifies after all moves that all data is there.
func (g *Container) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return g.Client.Check(ctx)
}

// Lost reports whether there is no container left that could be moved.
func (g *Container) Lost(ctx context.Context) bool {
	for _, node := range testbed.Nodes {
		if out, err := g.Bed.Exec(ctx, node, testbed.Program, "ps"); err == nil &&
			strings.Contains(out, g.Container()) {
			g.At = node
			return g.Client.Err() != nil
		}
	}
	return true
}

// Stop ends the client, and removes the container and its volume from both nodes.
func (g *Container) Stop(ctx context.Context) error {
	var failed error
	if g.Client != nil {
		failed = g.Client.Close()
		g.Client = nil
	}
	if g.HasClient {
		failed = errors.Join(failed, g.Bed.Lab.RemoveClient(g.ClientMachine()))
		g.HasClient = false
	}
	for _, node := range testbed.Nodes {
		out, err := g.Bed.Exec(ctx, node, testbed.Program, "ps", "--all")
		if err == nil && strings.Contains(out, g.Container()) {
			_, err = g.Bed.Exec(ctx, node, testbed.Program, "rm", "--force", g.Container())
		}
		failed = errors.Join(failed, err, RemoveVolume(g.Bed, node, Volume))
	}
	return failed
}

// RemoveVolume removes a volume of Godwit's from a node that may have it.
func RemoveVolume(b *testbed.Bed, node, name string) error {
	path, err := b.Path(node, filepath.Join(moves.GodwitVolumes, name))
	if err != nil {
		return err
	}
	return os.RemoveAll(path)
}
