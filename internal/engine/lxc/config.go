package lxc

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/engine"
)

// Bounds of a configuration, which may come from another node.
const (
	maxConfig   = 256 << 10
	maxIncludes = 64
)

// includable is the directory of LXC's own configurations, which are the same on every node with the same
// LXC.
const includable = "/usr/share/lxc/config"

// setting is one line of a configuration (lxc.container.conf(5)).
type setting struct{ key, value string }

// parseConfig parses a configuration as LXC does (confile.c, parse_line): comments, KEY = VALUE, quotes
// around a value.
func parseConfig(text string) ([]setting, error) {
	if len(text) > maxConfig || strings.ContainsRune(text, 0) {
		return nil, fmt.Errorf("the configuration has %d bytes, or a zero byte: at most %d are read",
			len(text), maxConfig)
	}
	var settings []setting
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, found := strings.Cut(line, "=")
		if !found {
			return nil, fmt.Errorf("line %.80q of the configuration is not KEY = VALUE", line)
		}
		value = strings.TrimSpace(value)
		if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		settings = append(settings, setting{key: strings.TrimSpace(key), value: value})
	}
	return settings, nil
}

// readConfig reads a configuration file.
func readConfig(path string) (string, error) { return readBounded(path, maxConfig) }

// readBounded reads at most one byte more than the file may have.
func readBounded(path string, limit int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return string(data), nil
}

// expand replaces includes by their contents.
func expand(settings []setting) ([]setting, error) {
	left := maxIncludes
	return expandSome(settings, &left)
}

func expandSome(settings []setting, left *int) ([]setting, error) {
	var all []setting
	for _, one := range settings {
		if one.key != "lxc.include" {
			all = append(all, one)
			continue
		}
		paths, err := included(one.value)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			if *left--; *left < 0 {
				return nil, fmt.Errorf("more than %d files are included", maxIncludes)
			}
			text, err := readConfig(path)
			if err != nil {
				return nil, err
			}
			inner, err := parseConfig(text)
			if err == nil {
				inner, err = expandSome(inner, left)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			all = append(all, inner...)
		}
	}
	return all, nil
}

// included returns the files that an lxc.include means: itself, or those of a directory that end in .conf.
func included(path string) ([]string, error) {
	if clean := filepath.Clean(path); clean != includable && !strings.HasPrefix(clean, includable+"/") {
		return nil, fmt.Errorf("%w: lxc.include = %.80s is not below %s", errNotMovable, path, includable)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("lxc.include: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	return filepath.Glob(filepath.Join(path, "*.conf"))
}

// errNotMovable means that a configuration has a setting that cannot move, or that a peer may not request.
var errNotMovable = errors.New("cannot move")

// limits matches the keys of the controllers of a cgroup. All others, such as cgroup.procs, affect
// processes, and not only the container's.
const limits = `cgroup2?\.(memory|cpu|cpuset|io|blkio|pids|hugetlb|devices)\.[a-zA-Z_.0-9]+`

var limitKey = regexp.MustCompile(`^lxc\.` + limits + `$`)

// movable matches the keys that a movable container may have. None of them runs a program of the node, or
// shows the container files of the node; checkSetting examines the keys that could.
var movable = regexp.MustCompile(
	`^lxc\.(include|arch|autodev|autodev\.tmpfs\.size|tty\.max|tty\.dir|pty\.max|console\.path|uts\.name|` +
		`cap\.(drop|keep)|signal\.(halt|reboot|stop)|start\.(auto|delay|order)|group|` +
		`init\.(cmd|cwd|uid|gid)|environment|` + limits +
		`|apparmor\.(profile|allow_incomplete|allow_nesting)|seccomp\.profile|no_new_privs|prlimit\.[a-z]+|` +
		`mount\.(auto|entry)|rootfs\.path|ephemeral|log\.level|` +
		`net\.0\.(type|flags|name|hwaddr|mtu|ipv4\.address|ipv4\.gateway|veth\.mode|veth\.pair))$`)

// checkSettings refuses settings that cannot move, of a configuration as written and with its includes,
// which are LXC's own.
func checkSettings(written, settings []setting) []engine.Problem {
	var problems []engine.Problem
	add := func(one setting, why, remedy string) {
		problems = append(problems, engine.Problem{What: fmt.Sprintf("%.60s = %.80s", one.key, one.value),
			Why: why, Remedy: remedy})
	}
	for _, one := range written {
		why, remedy := checkSetting(one)
		if why != "" {
			add(one, why, remedy)
		}
	}
	if last(written, "lxc.rootfs.path") == "" { // LXC would take the node's own root
		add(setting{key: "lxc.rootfs.path"}, "the configuration does not say where the root file system is",
			"name the directory of the root file system")
	}
	if value := last(settings, "lxc.console.path"); value != "none" {
		add(setting{"lxc.console.path", value}, "lxc-checkpoint cannot restore a console", "set it to none")
	}
	if value := last(settings, "lxc.tty.max"); value != "0" && value != "" {
		add(setting{"lxc.tty.max", value}, "lxc-checkpoint cannot restore terminals", "set it to 0")
	}
	if _, err := networkOf(settings); err != nil {
		problems = append(problems, engine.Problem{What: "the container's network", Why: err.Error(),
			Remedy: networkRemedy})
	}
	return problems
}

const (
	networkRemedy = "give it one interface: lxc.net.0.type = veth, lxc.net.0.veth.mode = router, " +
		"lxc.net.0.name = eth0, " +
		"lxc.net.0.ipv4.address = an address of this node's subnet with /32, lxc.net.0.ipv4.gateway = " +
		"169.254.1.1"
	unsetRemedy = "take it out of the container's configuration"
)

// checkSetting returns the objection to one line.
func checkSetting(one setting) (why, remedy string) {
	switch {
	case !movable.MatchString(one.key):
		return "this setting is not known to move", unsetRemedy
	case one.key == "lxc.rootfs.path" && !strings.HasPrefix(strings.TrimPrefix(one.value, "dir:"), "/"):
		return "only root file systems that are directories move", "move it to a directory"
	case one.key == "lxc.mount.entry":
		return checkMount(one.value)
	case one.key == "lxc.seccomp.profile" && !strings.HasPrefix(filepath.Clean(one.value), "/usr/share/lxc/"):
		return "the file may not be on the other node", "use a profile of /usr/share/lxc"
	case one.key == "lxc.ephemeral" && one.value != "0":
		return "the container would be removed when it stops", unsetRemedy
	}
	return "", ""
}

// checkMount allows file systems without content of their own, and read-only directories of the node.
func checkMount(entry string) (why, remedy string) {
	fields := strings.Fields(entry)
	if len(fields) < 4 {
		return "it does not have the format of fstab(5)", unsetRemedy
	}
	options := strings.Split(fields[3], ",")
	binds := slices.Contains(options, "bind")
	switch {
	case strings.Contains(fields[1], "..") || filepath.IsAbs(fields[1]):
		return "it leads out of the container", unsetRemedy
	case slices.Contains(options, "rbind") || slices.Contains(options, "remount"):
		return "its options affect more than one file system", unsetRemedy
	case !binds && slices.Contains([]string{"tmpfs", "mqueue", "proc", "sysfs", "securityfs", "debugfs"},
		fields[2]):
		return "", ""
	case binds && readsOnly(options) && bindsReadable(fields[0]):
		return "", ""
	}
	return "it is a directory of this node", unsetRemedy
}

// readsOnly reports whether a bind mount is read-only: of contradicting options LXC takes the last.
func readsOnly(options []string) bool {
	for _, option := range options {
		switch option {
		case "ro", "bind", "optional", "create=dir", "create=file", "nodev", "nosuid", "noexec", "defaults":
		default:
			return false
		}
	}
	return slices.Contains(options, "ro")
}

// bindsReadable reports whether a directory of the node may be shown to a container that another node
// describes: those that LXC's templates show.
func bindsReadable(source string) bool {
	clean := filepath.Clean(source)
	return slices.Contains([]string{"/lib", "/lib64", "/usr/lib", "/usr/lib64"}, clean) ||
		strings.HasPrefix(clean, "/sys/")
}

// last returns the effective value of a key: that of its last line.
func last(settings []setting, key string) string {
	value := ""
	for _, one := range settings {
		if one.key == key {
			value = one.value
		}
	}
	return value
}

// networkOf finds the address that the configuration gives to the container. Its hardware address and MTU
// are known only while it runs.
func networkOf(settings []setting) (engine.Network, error) {
	switch {
	case last(settings, "lxc.net.0.type") != "veth":
		return engine.Network{}, errors.New("its interface is not of type veth")
	case last(settings, "lxc.net.0.veth.mode") != "router":
		return engine.Network{}, errors.New("its interface is not routed, so its address cannot move alone")
	case last(settings, "lxc.net.0.name") != "" && last(settings, "lxc.net.0.name") != interfaceName:
		return engine.Network{}, errors.New("its interface is not called " + interfaceName)
	}
	prefix, err := netip.ParsePrefix(last(settings, "lxc.net.0.ipv4.address"))
	if err != nil || !prefix.Addr().Is4() || prefix.Bits() != 32 {
		return engine.Network{}, errors.New("lxc.net.0.ipv4.address is not one IPv4 address with /32")
	}
	return engine.Network{Address: prefix.Addr()}, nil
}

// interfaceName is the name of the container's interface; LXC's own choice is the same.
const interfaceName = "eth0"

// render writes a configuration whose root file system is here. A guarded configuration never starts:
// neither at boot, nor by lxc-start, for which LXC runs the program.
func render(settings []setting, rootfs string, guarded bool) string {
	var text strings.Builder
	for _, one := range settings {
		if one.key == "lxc.rootfs.path" {
			one.value = "dir:" + rootfs
		}
		fmt.Fprintf(&text, "%s = %s\n", one.key, one.value)
	}
	if guarded {
		text.WriteString("# This container is on its way to or from another node; Godwit puts its own " +
			"configuration back.\n" +
			"lxc.start.auto = 0\nlxc.hook.pre-start = /bin/false\n")
	}
	return text.String()
}
