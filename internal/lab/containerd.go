package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// Paths of a node's containerd, in the node.
const (
	containerdData   = nodeStateDirectory + "/containerd"
	containerdSocket = "/run/containerd/containerd.sock"
)

// StartContainerd starts a node's own containerd, and returns when it answers.
func (e Engines) StartContainerd(ctx context.Context, node string) error {
	root, err := e.lab.Root(node)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(runDirectory(e.lab.name), node+"-containerd.log"), os.O_CREATE|
		os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, err := e.lab.enter(ctx, node, "detach", []string{
		"containerd", "--config", "/dev/null", "--root", containerdData, "--state",
		filepath.Dir(containerdSocket), "--address", containerdSocket,
	})
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start containerd of node %s: %w", node, err)
	}
	ctx, cancel := context.WithTimeout(ctx, dockerTimeout)
	defer cancel()
	err = poll(ctx, func() (bool, error) {
		connection, err := net.Dial("unix", root+containerdSocket)
		if err != nil {
			return false, nil
		}
		return true, connection.Close()
	})
	if err != nil {
		return fmt.Errorf("containerd of node %s does not answer: %w; its log is %s", node, err, log.Name())
	}
	return nil
}
