package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// Paths of a node's Docker, in the node.
const (
	dockerData    = nodeStateDirectory + "/dockerd"
	dockerSocket  = "/run/docker.sock"
	dockerPIDFile = "/run/docker.pid"
	dockerRuntime = nodePrograms + "/godwit-runc"
)

// dockerTimeout is how long Docker may take to answer after its start, or to end.
const dockerTimeout = time.Minute

// envDockerStore selects the image store of Docker: "containerd", from Docker 27 on, or else Docker's own.
const envDockerStore = "GODWIT_LAB_DOCKER_STORE"

// StartDocker starts a node's own Docker, with the lab's program as the runtime godwit, and returns when it
// answers. flags are additional flags of dockerd.
func (e Engines) StartDocker(ctx context.Context, node string, flags ...string) error {
	root, err := e.lab.Root(node)
	if err != nil {
		return err
	}
	if err := os.Symlink(nodeProgram, root+dockerRuntime); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("Docker of node %s: %w", node, err) //nolint:staticcheck // its name
	}
	log, err := os.OpenFile(filepath.Join(runDirectory(e.lab.name), node+"-docker.log"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{
		"dockerd", "--data-root", dockerData, "--pidfile", dockerPIDFile, "--host", "unix://" + dockerSocket,
		"--ip6tables=false", "--add-runtime", "godwit=" + dockerRuntime,
	}
	if os.Getenv(envDockerStore) == "containerd" {
		args = append(args, "--feature=containerd-snapshotter=true")
	}
	cmd, err := e.lab.enter(ctx, node, "detach", append(args, flags...))
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	show, err := hide(root + containerdSocket)
	if err != nil {
		return err
	}
	defer show()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start Docker of node %s: %w", node, err)
	}
	ctx, cancel := context.WithTimeout(ctx, dockerTimeout)
	defer cancel()
	api := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", root+dockerSocket)
		}}}
	err = poll(ctx, func() (bool, error) { // it listens before it answers, and may end in between
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", nil)
		if err != nil {
			return false, err
		}
		answer, err := api.Do(request)
		if err != nil {
			return false, nil
		}
		return answer.StatusCode == http.StatusOK, answer.Body.Close()
	})
	if err != nil {
		//nolint:staticcheck // its name
		return fmt.Errorf("Docker of node %s does not answer: %w; its log ends with %s", node, err,
			endOf(log.Name()))
	}
	return nil
}

// hide renames a socket, if it exists, until show is called. dockerd starts a containerd of its own only if
// the machine has none (moby, cmd/dockerd, systemContainerdRunning), so a Docker that is started again after
// the node's containerd works as before.
func hide(socket string) (show func(), err error) {
	err = os.Rename(socket, socket+".hidden")
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	return func() { _ = os.Rename(socket+".hidden", socket) }, err // fails if the node is gone
}

// endOf returns the end of a log: a lab that fails to start is removed with its logs.
func endOf(path string) string {
	const most = 2000
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-most):])
}

// StopDocker ends the Docker of a node, with its containers. Its storage stays until RemoveDocker.
func (e Engines) StopDocker(ctx context.Context, node string) error {
	root, err := e.lab.Root(node)
	if err != nil {
		return err
	}
	if _, err := e.lab.Exec(ctx, node, "sh", "-c", "kill -TERM $(cat "+dockerPIDFile+")"); err != nil {
		return fmt.Errorf("stop Docker: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, dockerTimeout)
	defer cancel()
	return poll(ctx, func() (bool, error) {
		_, err := os.Stat(root + dockerPIDFile)
		return errors.Is(err, fs.ErrNotExist), nil
	})
}

// RemoveDocker removes the storage of a stopped Docker, and its links.
func (e Engines) RemoveDocker(ctx context.Context, node string) error {
	script := "umount -R " + dockerData + " 2>/dev/null; rm -rf " + dockerData +
		" /run/docker /run/docker.sock " + dockerRuntime
	_, err := e.lab.Exec(ctx, node, "sh", "-c", script)
	return err
}
