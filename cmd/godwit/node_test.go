package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/network/foreign"
	"github.com/godwit/godwit/internal/wire/identity"
)

// runNode runs a node command and returns what it printed.
func runNode(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := newNodeCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestNodeInit(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	args := []string{"init", "--state", state, "--name", "a", "--address", "192.0.2.1", "--pool",
		"10.9.0.0/16"}
	out, err := runNode(args...)
	if err != nil || !strings.Contains(out, "10.9.1.0/24") || !strings.Contains(out, "192.0.2.1:7443") {
		t.Fatalf("%q, %v", out, err)
	}
	if _, err := runNode(args...); !errors.Is(err, identity.ErrExists) ||
		!strings.Contains(err.Error(), "--force") {
		t.Errorf("again: %v", err)
	}
	if out, err := runNode(append(args, "--force")...); err != nil || !strings.Contains(out, "old identity") {
		t.Errorf("forced: %q, %v", out, err)
	}
}

// TestNodeInitRefusesWhatIsInUse creates a network like Podman's, in a network namespace of its own.
func TestNodeInitRefusesWhatIsInUse(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("only root can make network namespaces")
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "podman0"}}
	address, err := netlink.ParseAddr("10.88.0.1/16")
	if err := errors.Join(err, netlink.LinkAdd(bridge), netlink.AddrAdd(bridge, address),
		netlink.LinkSetUp(bridge)); err != nil {
		t.Fatal(err)
	}
	args := []string{"init", "--state", t.TempDir(), "--name", "a", "--address", "192.0.2.1"}
	_, err = runNode(append(args, "--pool", "10.88.0.0/16")...)
	if !errors.Is(err, foreign.ErrInUse) || !strings.Contains(err.Error(), "podman0") ||
		!strings.Contains(err.Error(), "--pool") {
		t.Errorf("Podman's network as the pool: %v", err)
	}
	if out, err := runNode(args...); err != nil || !strings.Contains(out, "10.57.1.0/24") {
		t.Errorf("the default beside Podman: %q, %v", out, err)
	}
}

func TestNodeCommandsRefuseBadUse(t *testing.T) {
	for _, args := range [][]string{
		{"init"},
		{"init", "--address", "a b"},
		{"init", "--address", "192.0.2.1", "--name", "A_b"},
		{"init", "--address", "192.0.2.1", "--name", "a", "--pool", "10.0.0.0/24"},
		{"init", "--address", "192.0.2.1", "extra"},
		{"join", "192.0.2.1"},
		{"join", "192.0.2.1", "token"},
	} {
		_, err := runNode(append(args, "--state", t.TempDir())...)
		var coded *cli.Error
		if !errors.As(err, &coded) || coded.Code != cli.ExitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
	_, err := runNode("join", "192.0.2.1", "token", "--address", "192.0.2.2", "--name", "b", "--state",
		t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "not a token") {
		t.Errorf("a bad token: %v", err)
	}
}
