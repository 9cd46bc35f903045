// Command godwit moves running containers between nodes.
//
// This package parses, wires together and prints; it makes no decisions. There is one file per group of
// commands.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine/containerd"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/kernel/inject"
	"github.com/godwit/godwit/internal/memory/pager"
	"github.com/godwit/godwit/internal/network/wireguard"
)

func main() {
	// Keep the main thread for this goroutine. Other threads end with a goroutine that has changed them
	// (namespaces, tracing), but the main thread cannot end (runtime/proc.go, mexit): it would stay in a
	// container's namespaces and keep them as long as the agent lives, and /proc/self would show them.
	runtime.LockOSThread()
	becomeHelper()
	os.Exit(runCommand())
}

// runCommand runs the command line until it is done or a signal ends it.
func runCommand() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRootCommand().ExecuteContext(ctx)
	if ctx.Err() != nil && status.Code(err) == codes.Canceled {
		return cli.ExitSignal // The user pressed ^C and knows why the command ended.
	}
	return cli.Report(os.Stderr, "godwit", err, explain)
}

// becomeHelper runs this program in the role for which another part of Godwit started it as a separate
// process. It does not return in that case. These roles are not commands for people, and cobra would only
// slow them down.
func becomeHelper() {
	// runc runs this binary as "criu" when a container arrives: see the restore proxy of package criu.
	if filepath.Base(os.Args[0]) == "criu" {
		os.Exit(criu.ProxyMain(os.Args))
	}
	// An engine runs this binary as its OCI runtime: see the package shim.
	if filepath.Base(os.Args[0]) == shim.Program {
		os.Exit(shim.Main(os.Args[1:]))
	}
	if len(os.Args) > 1 && os.Args[1] == shim.HolderCommand {
		os.Exit(shim.Hold())
	}
	if len(os.Args) > 1 && os.Args[1] == embedded.MonitorCommand {
		os.Exit(embedded.Monitor(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == containerd.StartCommand {
		os.Exit(containerd.StartMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == criu.ProxyServerCommand {
		os.Exit(criu.ProxyServerMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == inject.SeizureCommand {
		os.Exit(inject.SeizureMain(os.Stdin, os.Stdout))
	}
	if len(os.Args) > 1 && os.Args[1] == pager.Command {
		os.Exit(pager.Main(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == wireguard.Command {
		os.Exit(wireguard.Main(os.Args[2:]))
	}
}
