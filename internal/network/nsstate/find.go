package nsstate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"runtime"
	"slices"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// Expected is what the engine makes in the namespace, here and at the target.
type Expected struct {
	// Device is the container's interface.
	Device string
	// Address is the interface's address; the zero value if the container has none.
	Address netip.Addr
	// Gateway is the target of the default route; the zero value means any address of this node.
	Gateway netip.Addr
	// Settings are the definition's settings, such as net.ipv4.ping_group_range.
	Settings map[string]string
	// AnySettings accepts all settings.
	AnySettings bool
	// ReadOnly means that the container cannot write settings. Inherited settings are then the node's, as
	// they were when the namespace was made.
	ReadOnly bool

	gateways []netip.Addr // of this node
}

// Finding is one thing that a namespace at another node would lack.
type Finding struct {
	What   string // for example: nftables table inet killswitch
	Why    string // why it prevents a move
	Remedy string
}

// maxOfKind limits the findings of one kind; the last one says whether there are more.
const maxOfKind = 5

// made returns a finding of an object that the target would lack.
func made(kind, what string) Finding {
	return Finding{
		What: what, Why: kind + " made in the container's network namespace do not move",
		Remedy: "remove it before the move, and make it again at the target",
	}
}

// removed returns a finding of an object that the target would have again.
func removed(what string) Finding {
	return Finding{
		What: what + ", which was removed", Why: "the engine makes it again at the target",
		Remedy: "put it back before the move",
	}
}

// maxTries is how often a list is read again if it changes while it is read.
const maxTries = 3

// Filters finds rules of nftables and iptables in the network namespace at path.
func Filters(ctx context.Context, path string) ([]Finding, error) {
	ns, err := open(path)
	if err != nil || !ns.IsOpen() {
		return nil, err
	}
	defer ns.Close()
	found, err := tables(ctx, ns)
	if err != nil {
		return nil, fmt.Errorf("list nftables of %s: %w", path, err)
	}
	err = inside(ns, func() error {
		legacy, err := legacyTables()
		found = append(found, legacy...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list iptables of %s: %w", path, err)
	}
	return bounded(found), nil
}

// Others finds everything else in the network namespace at path.
func Others(ctx context.Context, path string, expected Expected) ([]Finding, error) {
	ns, err := open(path)
	if err != nil || !ns.IsOpen() {
		return nil, err
	}
	defer ns.Close()
	found, err := others(ctx, ns, path, expected, false)
	if err == nil && len(found) > 0 { // the node may have changed since the last look at a new namespace
		found, err = others(ctx, ns, path, expected, true)
	}
	return bounded(found), err
}

func others(ctx context.Context, ns netns.NsHandle, path string, expected Expected, anew bool) ([]Finding,
	error) {
	fresh, err := recent(anew)
	if err != nil {
		return nil, fmt.Errorf("make a network namespace to compare with: %w", err)
	}
	found, err := fresh.linksAndRoutes(ctx, ns, expected)
	if err != nil {
		return nil, fmt.Errorf("list devices and routes of %s: %w", path, err)
	}
	if err := ctx.Err(); err != nil || expected.AnySettings {
		return found, err
	}
	err = inside(ns, func() error {
		found = append(found, fresh.settingsOf(expected)...)
		return nil
	})
	return found, err
}

// open opens a namespace. It returns a closed handle if the namespace's process has ended.
func open(path string) (netns.NsHandle, error) {
	ns, err := netns.GetFromPath(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return netns.None(), nil
	}
	if err != nil {
		return netns.None(), fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return ns, nil
}

// inside runs a function on a thread of a network namespace.
func inside(ns netns.NsHandle, run func() error) error {
	return onThread(func() error { return netns.Set(ns) }, run)
}

// onThread runs a function on a new thread that has entered a namespace, and then ends.
func onThread(enter, run func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is not used again
		err := enter()
		if err == nil {
			err = run()
		}
		done <- err
	}()
	return <-done
}

// Fresh is the contents of every new namespace on this node.
type Fresh struct {
	devices  map[string]bool   // by name
	rules    map[string]bool   // of routing
	settings map[string]string // below /proc/sys/net
}

// bounded keeps a few findings of each kind. It does not count the others: if two looks named a finding
// differently, the first would count as resolved.
func bounded(found []Finding) []Finding {
	count := map[string]int{}
	var kept []Finding
	for _, f := range found {
		if count[f.Why]++; count[f.Why] <= maxOfKind {
			f.What = kernel.Printable(f.What)
			kept = append(kept, f)
		}
	}
	for i := range slices.Backward(kept) {
		if count[kept[i].Why] > maxOfKind {
			kept[i].What += ", and more"
		}
		delete(count, kept[i].Why)
	}
	return kept
}
