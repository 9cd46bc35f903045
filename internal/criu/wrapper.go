package criu

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// Some engines start CRIU by its command line, `criu restore --root …`, and wait for that very process, as
// lxc-checkpoint does. They find this program as `criu`, the CRIU wrapper. It passes the arguments to the
// restore proxy, moves to where the container will be, and becomes CRIU. It keeps what the engine has given
// to it (descriptors, mounts), because the container's first process has to be made beside it. It takes its
// requests from the proxy, a separate process that the agent has started before (ProxyServer).

// Environment of the wrapper.
const (
	envWrapper        = "GODWIT_STAND_IN"
	envWrapperNetwork = "GODWIT_STAND_IN_NETWORK"
)

// WrapperSettings make the criu of an engine's restore a wrapper.
type WrapperSettings struct {
	Socket  string // on which the proxy server listens
	Network string // path of the network namespace that the container gets
	Tool    Tool   // the real CRIU
}

// WrapperEnv returns the environment for the engine's command. The caller adds a PATH that begins with a
// directory in which `criu` is a link to this program.
func WrapperEnv(s WrapperSettings) []string {
	return []string{envWrapper + "=" + s.Socket, envWrapperNetwork + "=" + s.Network,
		envCRIU + "=" + s.Tool.Path}
}

// isWrapper reports whether this process was started as a wrapper. Other calls of CRIU by engines, such as
// for its version, are for the real CRIU.
func isWrapper(args []string) bool {
	return os.Getenv(envWrapper) != "" && len(args) > 1 && args[1] == "restore"
}

// wrapperHello is the wrapper's only message to the proxy server. After it, the connection carries CRIU's
// protocol.
type wrapperHello struct {
	Args []string `json:"args"`
}

// becomeCRIU becomes the real CRIU. It returns only if that fails.
func becomeCRIU(path string, args []string) error {
	runtime.LockOSThread() // the thread that has changed its namespaces must be the one that becomes CRIU
	if err := enterContainer(args); err != nil {
		return err
	}
	fd, err := dialProxyServer(os.Getenv(envWrapper), wrapperHello{Args: args[1:]})
	if err != nil {
		return err
	}
	return syscall.Exec(path, []string{path, "swrk", fmt.Sprint(fd)}, criuEnvironment[:])
}

// enterContainer moves this process to where the container's processes are to be, because they inherit
// CRIU's attributes. Cgroups come first, because they become the roots of the new cgroup namespace. The
// engine keeps the network namespace (NetworkFor).
func enterContainer(args []string) error {
	groups, err := cgroupRoots(args)
	if err == nil {
		err = cgroup.Join(groups)
	}
	if err != nil {
		return fmt.Errorf("enter the container's cgroup: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make the container's cgroup namespace: %w", err)
	}
	network, err := os.Open(os.Getenv(envWrapperNetwork))
	if err != nil {
		return fmt.Errorf("enter the container's network: %w", err)
	}
	defer network.Close()
	if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the container's network %s: %w", network.Name(), err)
	}
	return nil
}

// cgroupRoots returns the cgroups that the engine has made for the container, by the names of their
// hierarchies: the arguments --cgroup-root [CONTROLLERS:]PATH. With cgroup version 2 alone, LXC's path does
// not begin with a slash, and the controllers are those of the container's cgroup.
func cgroupRoots(args []string) (map[string]string, error) {
	groups := map[string]string{}
	for _, value := range argumentsOf(args, "--cgroup-root") {
		controllers, path, found := strings.Cut(value, ":")
		if !found {
			controllers, path = "", value
		}
		if !found && !strings.HasPrefix(path, "/") || path == "" {
			return nil, fmt.Errorf("--cgroup-root %.80q is not [CONTROLLERS:]PATH", value)
		}
		groups[controllers] = filepath.Join("/", path)
	}
	if len(groups) == 0 {
		return nil, errors.New("the engine names no cgroup")
	}
	return groups, nil
}

// argumentsOf returns the values of an option that may occur several times.
func argumentsOf(args []string, option string) (values []string) {
	for i, arg := range args {
		if value, found := strings.CutPrefix(arg, option+"="); found {
			values = append(values, value)
		}
		if arg == option && i+1 < len(args) {
			values = append(values, args[i+1])
		}
	}
	return values
}

// dialProxyServer connects to the proxy server and sends a hello. The descriptor stays open in the program
// that this process becomes.
func dialProxyServer(socket string, hello wrapperHello) (int, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return -1, fmt.Errorf("connect to the proxy server: %w", err)
	}
	defer conn.Close()
	data, err := json.Marshal(hello)
	if err != nil {
		return -1, err
	}
	if _, err := conn.Write(data); err != nil {
		return -1, fmt.Errorf("tell the proxy server: %w", err)
	}
	file, err := conn.File() // blocking, as CRIU expects
	if err != nil {
		return -1, err
	}
	fd, err := unix.Dup(int(file.Fd())) // without FD_CLOEXEC
	if err != nil {
		return -1, fmt.Errorf("keep the connection to the proxy server: %w", err)
	}
	return fd, nil
}
