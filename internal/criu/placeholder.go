package criu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/inject"
)

// An engine may need the container's first process after it was created and before it is started: since
// version 28, Docker makes networks then. At a restore there is no such process until the state has come,
// and then it runs at once. So the proxy makes a PID placeholder for it, in the container's cgroup and
// network namespace, whose PID the restored process gets (inject.PIDPlaceholder). The proxy reports that it
// is ready when the engine has requested the start from the runtime. The runtime queries the proxy, over a
// socket, twice:
//
//	runtime: create      proxy: forerunner   with the placeholder's PID
//	runtime: start       proxy: restorer     with the PID of runc restore, which ends with the restore
//	runtime: known       the end
//
// The runtime can also end the proxy before the start (end, with the same answer as to create): whoever
// ends the placeholder means the container. The word forerunner is that of release v0.1.0.
const (
	kindCreate      = "create"
	kindPlaceholder = "forerunner"
	kindStart       = "start"
	kindRestorer    = "restorer"
	kindKnown       = "known"
	kindEnd         = "end"
)

// callPatience bounds an exchange between proxy and runtime, which are on the same node and do nothing
// else.
const callPatience = 10 * time.Second

// startPlaceholder makes the first process's placeholder. This process is still in the container's cgroup.
func startPlaceholder(network *os.File) (*inject.PIDPlaceholder, error) {
	if network == nil {
		return nil, errors.New("the container has no network namespace of its own that the engine could find")
	}
	return inject.StartPIDPlaceholder(network)
}

// introduce tells the runtime the placeholder's PID, and returns when the engine has requested the start.
func (p *proxyProcess) introduce(socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make the socket for the runtime: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("make the socket for the runtime: %w", err)
	}
	defer listener.Close()
	if err := os.Chmod(socket, 0o600); err != nil {
		return fmt.Errorf("make the socket for the runtime: %w", err)
	}
	defer p.agent.watch(func() { _ = listener.SetDeadline(time.Unix(1, 0)) })()
	restorer, err := peerOf(p.runc)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("wait for the engine to start the container: the agent is gone or has given "+
				"up: %w", err)
		}
		asked, err := p.answerRuntime(conn, restorer)
		_ = conn.Close() // everything was sent
		switch {
		case err == nil && asked == kindStart:
			return nil
		case err == nil && asked == kindEnd:
			return errors.New("the engine has ended the container before it has started it")
		}
		if err != nil {
			p.note("request of the runtime: " + err.Error())
		}
	}
}

// answerRuntime answers one query.
func (p *proxyProcess) answerRuntime(conn net.Conn, restorer int) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(callPatience)); err != nil {
		return "", err
	}
	runtime := newProxyConn(conn)
	asked, err := runtime.receive()
	if err != nil {
		return "", err
	}
	answer := proxyMessage{Kind: kindPlaceholder, PID: p.placeholder.PID()}
	if asked.Kind == kindStart {
		answer = proxyMessage{Kind: kindRestorer, PID: restorer}
	}
	if err := runtime.send(answer); err != nil {
		return "", err
	}
	_, err = runtime.receive()
	return asked.Kind, err
}

// checkPID requires the container's first process to have the PID that the engine knows.
func (p *proxyProcess) checkPID() error {
	if p.placeholder == nil {
		return nil
	}
	if p.handover == nil {
		return errors.New("CRIU has not said when it makes the first process")
	}
	if p.pid != p.placeholder.PID() {
		return fmt.Errorf("the first process has PID %d, but the engine expects PID %d",
			p.pid, p.placeholder.PID())
	}
	return nil
}

// AwaitPlaceholder waits for the process that an engine can take for the first process of a container that
// is being restored, and returns its PID. It fails when the restoring runc has ended before that, which
// over signals.
func AwaitPlaceholder(socket string, over <-chan struct{}) (int, error) {
	const pause = 5 * time.Millisecond
	for {
		pid := 0
		err := askProxy(socket, kindCreate, func(told int) error { pid = told; return nil })
		if err == nil {
			return pid, nil
		}
		select {
		case <-over:
			return 0, errors.New("the restore has ended before it began")
		case <-time.After(pause):
		}
	}
}

// EndRestore ends a restore that has not been started yet.
func EndRestore(socket string) error {
	return askProxy(socket, kindEnd, func(int) error { return nil })
}

// StartRestored lets the restore of a container with a placeholder continue, and returns when the restore
// has ended in any way.
func StartRestored(ctx context.Context, socket string) error {
	var restorer *os.File
	err := askProxy(socket, kindStart, func(pid int) (err error) {
		restorer, err = kernel.PidfdOpen(pid)
		return err
	})
	if err != nil {
		return err
	}
	defer restorer.Close()
	return kernel.PidfdWait(ctx, restorer)
}

// askProxy queries the proxy. It continues when known has returned.
func askProxy(socket, question string, known func(pid int) error) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return fmt.Errorf("ask the restore proxy: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(callPatience)); err != nil {
		return err
	}
	proxy := newProxyConn(conn)
	if err := proxy.send(proxyMessage{Kind: question}); err != nil {
		return fmt.Errorf("ask the restore proxy: %w", err)
	}
	answer, err := proxy.receive()
	if err != nil {
		return fmt.Errorf("ask the restore proxy: %w", err)
	}
	if err := known(answer.PID); err != nil {
		return err
	}
	return proxy.send(proxyMessage{Kind: kindKnown})
}
