package nsstate

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
)

const (
	settingsDir = "/proc/sys/net"
	maxSettings = 4096
	maxSetting  = 4096 // bytes of a value
	maxTold     = 60   // characters of a value in a message
)

// Settings that are not compared: those of one device or of future devices, which engines make as well;
// counters; and those that a namespace takes from the node when it is made.
var (
	perDevice = []string{"ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh", "mpls/conf"}
	varying   = []string{
		"netfilter/nf_conntrack_count", "netfilter/nf_conntrack_max", "netfilter/nf_conntrack_expect_max",
		"netfilter/nf_conntrack_buckets", // these three, and the following ones, are the node's
		"core/rmem_default", "core/rmem_max", "core/wmem_default", "core/wmem_max",
		"ipv4/tcp_available_congestion_control", "ipv4/tcp_allowed_congestion_control",
		"ipv4/tcp_rmem", "ipv4/tcp_wmem", "ipv4/tcp_congestion_control",
		"ipv4/tcp_fastopen_key",    // made when a listener first needs a key
		"ipv4/conf/all/forwarding", // follows ip_forward
		"ipv6/conf/all/disable_ipv6",
	}
)

// inherited lists settings that a namespace also takes from the node. Only a value that is not the kernel's
// default (inheritedDefaults, or zero) shows that the container made it. IPv6 settings are taken from the
// node only if net.core.devconf_inherit_init_net says so.
var (
	inherited         = []string{"ipv4/ip_forward", "ipv4/conf/all/"}
	inheritedIPv6     = "ipv6/conf/all/"
	inheritedDefaults = map[string]string{
		"accept_redirects": "1", "secure_redirects": "1", "send_redirects": "1", "shared_media": "1",
	}
)

// usualFor is how long the contents of a new namespace are reused for other containers: they depend on the
// kernel and the node. Making and removing a namespace takes the lock of all network devices, and should not
// happen just before a container is frozen.
const usualFor = time.Minute

var lastLook struct {
	sync.Mutex

	fresh Fresh
	at    time.Time
}

// recent returns the contents of a namespace that was made within the last minute, or now if anew is set.
func recent(anew bool) (Fresh, error) {
	lastLook.Lock()
	defer lastLook.Unlock()
	if !anew && time.Since(lastLook.at) < usualFor {
		return lastLook.fresh, nil
	}
	fresh, err := NewFresh()
	if err == nil {
		lastLook.fresh, lastLook.at = fresh, time.Now()
	}
	return fresh, err
}

// NewFresh reads the contents of a new namespace.
func NewFresh() (Fresh, error) {
	f := Fresh{devices: map[string]bool{}, rules: map[string]bool{}}
	enter := func() error { return unix.Unshare(unix.CLONE_NEWNET) }
	err := onThread(enter, func() error {
		links, err := dump.Whole(netlink.LinkList)
		if err != nil {
			return err
		}
		for _, link := range links {
			f.devices[link.Attrs().Name] = true
		}
		all, err := dump.Whole(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) })
		for _, rule := range all {
			f.rules[ruleName(rule)] = true
		}
		f.settings = readSettings()
		return err
	})
	return f, err
}

// readSettings reads the settings of the calling thread's namespace. A setting that cannot be read has no
// value yet.
func readSettings() map[string]string {
	all := map[string]string{}
	_ = fs.WalkDir(os.DirFS(settingsDir), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || len(all) >= maxSettings || entry.IsDir() && isDevices(name):
			return fs.SkipDir
		case entry.IsDir() || slices.Contains(varying, name):
			return nil
		}
		if value, ok := readSetting(name); ok {
			all[name] = value
		}
		return nil
	})
	return all
}

// isDevices reports whether a directory has the settings of one device, or of future devices.
func isDevices(directory string) bool {
	return slices.Contains(perDevice, filepath.Dir(directory)) && filepath.Base(directory) != "all"
}

// isLeftOut reports whether a setting is not compared.
func isLeftOut(name string) bool {
	return slices.Contains(varying, name) || isDevices(filepath.Dir(name))
}

func readSetting(name string) (string, bool) {
	file, err := os.Open(filepath.Join(settingsDir, name))
	if err != nil {
		return "", false
	}
	defer file.Close()
	data := make([]byte, maxSetting)
	n, err := file.Read(data)
	if err != nil && n == 0 {
		return "", false
	}
	return strings.Join(strings.Fields(string(data[:n])), " "), true
}

// settingsOf finds settings of the calling thread's namespace with values other than in a new namespace and
// in the definition.
func (f Fresh) settingsOf(expected Expected) []Finding {
	defined := map[string]string{}
	for name, value := range expected.Settings {
		if below, is := strings.CutPrefix(strings.ReplaceAll(name, ".", "/"), "net/"); is {
			defined[below] = strings.Join(strings.Fields(value), " ")
		}
	}
	var found []Finding
	now := f.changed()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		value, usual := now[name], f.settings[name]
		own, is := defined[name]
		if is && value == own || !is && expected.ReadOnly && isNodes(name) {
			continue
		}
		found = append(found, Finding{
			What:   fmt.Sprintf("net.%s = %.*s", strings.ReplaceAll(name, "/", "."), maxTold, value),
			Why:    "settings of the kernel made in the container's network namespace do not move",
			Remedy: fmt.Sprintf("set it to %.*s, and set it anew at the target", maxTold, usual),
		})
	}
	return found
}

// changed returns the settings of the calling thread's namespace that differ from a new one.
func (f Fresh) changed() map[string]string {
	all := readSettings()
	maps.DeleteFunc(all, func(name, value string) bool {
		usual, is := f.settings[name]
		return !is || value == usual || isInherited(name, value)
	})
	return all
}

// isInherited reports whether a namespace may have had a value from the node since it was made.
func isInherited(name, value string) bool {
	return isNodes(name) && !strings.HasPrefix(name, inheritedIPv6) &&
		value == cmp.Or(inheritedDefaults[filepath.Base(name)], "0")
}

// isNodes reports whether a new namespace may take a setting from the node.
func isNodes(name string) bool {
	has := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return slices.ContainsFunc(inherited, has) || has(inheritedIPv6)
}
