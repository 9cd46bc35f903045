package nerdctl

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/engine"
)

// prefix is the prefix of nerdctl's labels. nerdctl also passes each of them to its hooks as an annotation.
const prefix = "nerdctl/"

const (
	labelState      = prefix + "state-dir"
	labelName       = prefix + "name"
	labelNetworks   = prefix + "networks"
	labelLog        = prefix + "log-uri"
	labelLogConfig  = prefix + "log-config"
	labelHostname   = prefix + "hostname"
	labelDomain     = prefix + "domainname"
	labelExtraHosts = prefix + "extraHosts"
)

const remedy = "start it without that"

// maxLabel bounds a label: containerd accepts 4096 bytes of name and value.
const maxLabel = 4096

var (
	namePattern     = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{1,62}$`)
	hostPattern     = regexp.MustCompile(`^[a-zA-Z0-9_.-]{0,253}$`)
	networkPattern  = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)
	platformPattern = regexp.MustCompile(`^linux/[a-z0-9]{1,20}(/[a-z0-9]{1,20})?$`)
	numberPattern   = regexp.MustCompile(`^-?[0-9]{1,9}$`)
	sizePattern     = regexp.MustCompile(`^[0-9]{1,15}[a-zA-Z]{0,3}$`)
)

// Has reports whether nerdctl has made a container with these labels.
func Has(labels map[string]string) bool { return labels[labelState] != "" }

var idPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// IsID reports whether an ID has nerdctl's format.
func IsID(id string) bool { return idPattern.MatchString(id) }

// Name returns nerdctl's name of the container; "" if it has no name.
func Name(labels map[string]string) string { return labels[labelName] }

// Network returns the only network of a container: none, host, or a network of CNI.
func Network(labels map[string]string) (string, error) {
	var all []string
	if err := decode(labels[labelNetworks], &all); err != nil {
		return "", err
	}
	if len(all) != 1 || !networkPattern.MatchString(all[0]) {
		return "", fmt.Errorf("networks %.200q: only one network, none or host is supported", all)
	}
	return all[0], nil
}

// Log returns where containerd sends a container's output; SetLog sends it to this node's nerdctl.
func Log(labels map[string]string) string { return labels[labelLog] }

// SetLog changes the labels.
func SetLog(labels map[string]string, program string, p Place) { labels[labelLog] = LogURI(program, p) }

// DefaultNetwork is the network of a container for which no other is requested. nerdctl makes it when it is
// first used.
const DefaultNetwork = "bridge"

func decode(text string, into any) error { return json.Unmarshal([]byte(text), into) }

// known are nerdctl's labels, with a function that says why a container with the label cannot move, or
// returns "".
var known = map[string]func(p Place, value string) string{
	"namespace": func(p Place, value string) string {
		return unless(value == p.Namespace,
			"it is not the container's")
	},
	"state-dir": func(p Place, value string) string {
		return unless(value == p.State(),
			"nerdctl was told --data-root")
	},
	"name":       matching(namePattern),
	"hostname":   matching(hostPattern),
	"domainname": matching(hostPattern),
	"platform":   matching(platformPattern),
	"extraHosts": func(_ Place, value string) string { _, err := extraHosts(value); return reason(err) },
	"networks": func(_ Place, value string) string {
		_, err := Network(map[string]string{labelNetworks: value})
		return reason(err)
	},
	"log-uri": func(Place, string) string { return "" }, // it is set again: see Obstacles
	"log-config": func(p Place, value string) string {
		_,
			err := readLogConfig(p, value)
		return reason(err)
	},
	"ip": func(_ Place, value string) string {
		_,
			err := netip.ParseAddr(value)
		return reason(err)
	},
	"mac-address":  func(_ Place, value string) string { _, err := net.ParseMAC(value); return reason(err) },
	"stop-timeout": matching(numberPattern),
	"ipc":          func(_ Place, value string) string { return reason(checkIPC(value)) },
	"host-config":  func(_ Place, value string) string { return reason(checkHostConfig(value)) },
	"mounts":       func(_ Place, value string) string { return reason(checkMounts(value)) },
	"dns": func(_ Place,
		value string) string {
		var servers map[string]any
		return reason(decode(value, &servers))
	},
	"user":  func(Place, string) string { return "" }, // shown to people only, as is the next one
	"error": func(Place, string) string { return "" },
	"auto-remove": func(_ Place, value string) string {
		return unless(value == "false", "--rm: nothing at the target would remove the container")
	},
	"ports":             never("published ports are not moved"),
	"ip6":               never("IPv6 addresses are not moved"),
	"anonymous-volumes": never("anonymous volumes of nerdctl are not moved"),
	"pid-file":          never("--pidfile: that file is this node's"),
	"pid-container":     never("--pid: the other container would have to move with it"),
}

func unless(good bool, why string) string {
	if good {
		return ""
	}
	return why
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func never(why string) func(Place, string) string { return func(Place, string) string { return why } }

func matching(pattern *regexp.Regexp) func(Place, string) string {
	return func(_ Place, value string) string {
		return unless(pattern.MatchString(value), "such a value is not moved")
	}
}

// LabelObstacles lists the labels of a container that cannot move. A container without nerdctl's labels
// must not have its annotations either. Both nodes check, because the target's nerdctl would obey them.
func LabelObstacles(p Place, labels, annotations map[string]string) []engine.Problem {
	var found []engine.Problem
	add := func(what, why string) {
		if why != "" {
			found = append(found, engine.Problem{What: what, Why: why, Remedy: remedy})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		short, is := strings.CutPrefix(name, prefix)
		if !is {
			continue
		}
		check, value := known[short], labels[name]
		switch {
		case !Has(labels) || check == nil:
			add("label "+name, "its meaning to nerdctl is unknown")
		case len(value) > maxLabel:
			add("label "+name, "it is too long")
		default:
			add("label "+name+"="+value, check(p, value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if _, is := labels[name]; strings.Contains(name, prefix) && !is && annotations[name] != "" {
			add("annotation "+name, "no label of nerdctl matches it")
		}
	}
	if _, err := Network(labels); Has(labels) && err != nil && labels[labelNetworks] == "" {
		add("networks of nerdctl", err.Error())
	}
	if Has(labels) && labels[labelLogConfig] == "" {
		add("its log", "nerdctl keeps no log of the container")
	}
	return found
}

// Annotations returns the annotations for the hooks of an arriving container: its labels, and no other
// annotations under nerdctl's name.
func Annotations(labels, came map[string]string) map[string]string {
	made := map[string]string{labelDomain: ""}
	for name, value := range came {
		if !strings.Contains(name, prefix) {
			made[name] = value
		}
	}
	for name, value := range labels {
		if strings.HasPrefix(name, prefix) {
			made[name] = value
		}
	}
	return made
}

// extraHosts parses additional names in the hosts file, with their addresses.
func extraHosts(value string) (map[string]string, error) {
	var all []string
	if err := decode(value, &all); err != nil {
		return nil, err
	}
	hosts := map[string]string{}
	for _, one := range all {
		name, address, _ := strings.Cut(one, ":")
		if _, err := netip.ParseAddr(address); err != nil || name == "" || !hostPattern.MatchString(name) {
			return nil, fmt.Errorf("further host %.80q", one)
		}
		hosts[name] = address
	}
	return hosts, nil
}

// checkIPC requires a container to have an IPC namespace of its own, shared with no other container.
func checkIPC(value string) error {
	var ipc map[string]string
	if err := decode(value, &ipc); err != nil {
		return fmt.Errorf("--ipc: %w", err)
	}
	if size, is := ipc["shmSize"]; is && !sizePattern.MatchString(size) {
		return fmt.Errorf("--shm-size %.40q", size)
	}
	delete(ipc, "shmSize")
	if len(ipc) != 1 || ipc["mode"] != "private" {
		return fmt.Errorf("--ipc: only a private one is moved")
	}
	return nil
}

// checkHostConfig requires that there are no settings about the node's files and devices.
func checkHostConfig(value string) error {
	var config struct {
		CidFile string
		Devices []any
	}
	switch err := decode(value, &config); {
	case err != nil:
		return err
	case config.CidFile != "":
		return fmt.Errorf("--cidfile: that file is this node's")
	case len(config.Devices) > 0:
		return fmt.Errorf("--device: devices are this node's")
	}
	return nil
}

// checkMounts requires that there are no volumes of nerdctl.
func checkMounts(value string) error {
	var mounts []struct{ Type, Name, Source string }
	if err := decode(value, &mounts); err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Type == "volume" {
			return fmt.Errorf("volume %.80s: volumes of nerdctl are not moved", m.Name)
		}
	}
	return nil
}

// logConfig is nerdctl's configuration of a container's log.
type logConfig struct {
	Driver  string            `json:"driver"`
	Opts    map[string]string `json:"opts,omitempty"`
	Address string            `json:"address"`
}

// logOptions are the permitted options of a log, and their values.
var logOptions = map[string]*regexp.Regexp{
	"max-size": sizePattern, "max-file": regexp.MustCompile(`^[0-9]{1,4}$`),
	"env":    regexp.MustCompile(`^[a-zA-Z0-9_,]{0,500}$`),
	"labels": regexp.MustCompile(`^[a-zA-Z0-9_.,/-]{0,500}$`),
}

func readLogConfig(p Place, value string) (logConfig, error) {
	var config logConfig
	if err := decode(value, &config); err != nil {
		return config, err
	}
	if config.Driver != "json-file" || config.Address != p.Socket {
		return config, fmt.Errorf("log driver %.40q: only json-file is moved", config.Driver)
	}
	for name, value := range config.Opts {
		if pattern := logOptions[name]; pattern == nil || !pattern.MatchString(value) {
			return config, fmt.Errorf("log option %.40s=%.80s is not moved", name, value)
		}
	}
	return config, nil
}
