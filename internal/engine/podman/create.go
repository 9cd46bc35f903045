package podman

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// Create makes Podman create an arriving container, which is guarded before it exists: Podman may start it
// only after it has run here.
func (a *adapter) Create(ctx context.Context, d engine.Definition, label, value string) (string, error) {
	x, err := decode(d)
	if err != nil {
		return "", err
	}
	for _, v := range oci.Coming(d) {
		if _, err := podman(ctx, "volume", "create", "--label="+label+"="+value, v.Name); err != nil {
			return "", fmt.Errorf("make %s: %w", v, err)
		}
	}
	x.Config.Labels = maps.Clone(x.Config.Labels)
	if x.Config.Labels == nil {
		x.Config.Labels = map[string]string{}
	}
	x.Config.Labels[label] = value
	x.Arrival = value
	a.images.name(ctx, d)
	image, err := a.images.here(engine.Image{ID: d.ImageID, Names: []string{d.Image}, Layers: d.Layers})
	if err == nil && image == "" {
		err = fmt.Errorf("image %s: %w", d.ImageID, engine.ErrNoImage)
	}
	if err != nil {
		return "", err
	}
	args, err := createArgs(d, x, image)
	if err != nil {
		return "", err
	}
	if err := a.guardArrival(value); err != nil {
		return "", err
	}
	made, err := podman(ctx, args...)
	if err != nil {
		return "", err
	}
	engineID := strings.TrimSpace(string(made))
	if !idPattern.MatchString(engineID) {
		return "", fmt.Errorf("Podman says %.80q", engineID) //nolint:staticcheck // its name
	}
	if err := a.guard(engineID); err != nil {
		return engineID, err
	}
	return engineID, durable.Remove(a.guardingArrival(value))
}

// flags are arguments for Podman. Each flag and its value are one argument, so that no value is taken for a
// flag.
type flags []string

func (f *flags) add(name, value string) { *f = append(*f, "--"+name+"="+value) }

func (f *flags) text(name, value string) {
	if value != "" {
		f.add(name, value)
	}
}

func (f *flags) number(name string, value int64, unit string) {
	if value != 0 {
		f.add(name, strconv.FormatInt(value, 10)+unit)
	}
}

func (f *flags) truth(name string, value bool) {
	if value {
		f.add(name, "true")
	}
}

func (f *flags) list(name string, values []string) {
	for _, value := range values {
		f.add(name, value)
	}
}

// createArgs returns the command line that makes a container as it was made at the source.
func createArgs(d engine.Definition, x extra, image string) ([]string, error) {
	entry, err := json.Marshal(x.Args[:len(x.Args)-x.Command])
	if err != nil {
		return nil, err
	}
	f := flags{"--runtime=" + oci.Runtime, "create", "--pull=never", "--name=" + d.Name, "--systemd=false",
		"--image-volume=ignore", "--http-proxy=false"}
	f.text("annotation", prefixed(arrivalAnnotation+"=", x.Arrival))
	if err := f.config(x); err != nil {
		return nil, err
	}
	f.host(x)
	if err := f.network(d, x); err != nil {
		return nil, err
	}
	if err := f.health(x.Config.Healthcheck); err != nil {
		return nil, err
	}
	f.mounts(x)
	if x.Command == len(x.Args) {
		entry = nil
	}
	f.add("entrypoint", string(entry))
	return append(append(f, image), x.Args[len(x.Args)-x.Command:]...), nil
}

func (f *flags) config(x extra) error {
	c := x.Config
	for _, variable := range c.Env {
		if !strings.Contains(variable, "=") { // Podman would take the value from the agent's environment
			return fmt.Errorf("variable %.80q has no value", variable)
		}
		f.add("env", variable)
	}
	f.truth("unsetenv-all", true)
	for _, name := range slices.Sorted(maps.Keys(c.Labels)) {
		f.add("label", name+"="+c.Labels[name])
	}
	if x.Host.NetworkMode != "host" {
		f.text("hostname", c.Hostname)
	}
	f.text("user", c.User)
	f.truth("tty", c.TTY)
	f.truth("interactive", c.OpenStdin)
	f.text("workdir", c.WorkingDir)
	f.text("stop-signal", string(c.StopSignal))
	f.add("stop-timeout", strconv.FormatUint(uint64(c.StopTimeout), 10))
	f.text("tz", c.Timezone)
	f.text("umask", c.Umask)
	if c.Passwd != nil && !*c.Passwd {
		f.add("passwd", "false")
	}
	return nil
}

func (f *flags) host(x extra) {
	h := x.Host
	f.text("cgroupns", h.CgroupMode)
	f.text("ipc", h.IpcMode)
	f.text("log-driver", h.LogConfig.Type)
	f.text("log-opt", prefixed("tag=", h.LogConfig.Tag))
	if !slices.Contains([]string{"0B", "-1B"}, h.LogConfig.Size) { // no limit
		f.text("log-opt", prefixed("max-size=", h.LogConfig.Size))
	}
	f.text("restart", h.RestartPolicy.String())
	f.truth("rm", h.AutoRemove)
	f.list("cap-add", h.CapAdd)
	f.list("cap-drop", h.CapDrop)
	f.list("security-opt", h.SecurityOpt)
	f.list("dns", h.DNS)
	f.list("dns-option", h.DNSOptions)
	f.list("dns-search", h.DNSSearch)
	f.list("add-host", h.ExtraHosts)
	f.list("group-add", h.GroupAdd)
	f.number("oom-score-adj", int64(h.OomScoreAdj), "")
	f.truth("oom-kill-disable", h.OomKillDisable)
	f.truth("init", h.Init)
	if h.IpcMode != "none" {
		f.number("shm-size", h.ShmSize, "b")
	}
	f.number("cpu-shares", int64(h.CPUShares), "")
	f.number("cpu-period", int64(h.CPUPeriod), "")
	f.number("cpu-quota", h.CPUQuota, "")
	f.text("cpuset-cpus", h.CpusetCpus)
	f.text("cpuset-mems", h.CpusetMems)
	f.number("memory", h.Memory, "b")
	f.number("memory-reservation", h.MemoryReservation, "b")
	if h.MemorySwap > 0 {
		f.number("memory-swap", h.MemorySwap, "b")
	}
	f.number("pids-limit", max(h.PidsLimit, 0), "")
	for _, limit := range h.Ulimits {
		f.add("ulimit", fmt.Sprintf("%s=%d:%d", strings.ToLower(strings.TrimPrefix(limit.Name, "RLIMIT_")),
			limit.Soft, limit.Hard))
	}
}

func prefixed(prefix, value string) string {
	if value == "" {
		return ""
	}
	return prefix + value
}

// String returns the policy in the notation of Podman's command line.
func (p restartPolicy) String() string {
	if p.Name == "on-failure" && p.MaximumRetryCount > 0 {
		return fmt.Sprintf("%s:%d", p.Name, p.MaximumRetryCount)
	}
	return p.Name
}

// health adds a health check. Podman expects a list without the word CMD, or with CMD-SHELL (specgenutil,
// makeHealthCheckFromCli).
func (f *flags) health(h *healthcheck) error {
	if h == nil || len(h.Test) == 0 {
		return nil
	}
	if h.Test[0] == "NONE" {
		f.truth("no-healthcheck", true)
		return nil
	}
	test := h.Test
	if test[0] == "CMD" {
		test = test[1:]
	}
	told, err := json.Marshal(test)
	if err != nil {
		return err
	}
	f.add("health-cmd", string(told))
	f.text("health-interval", h.Interval.String())
	f.text("health-timeout", h.Timeout.String())
	f.text("health-start-period", h.StartPeriod.String())
	f.number("health-retries", int64(h.Retries), "")
	return nil
}

func (f *flags) mounts(x extra) {
	if x.Host.ReadonlyRootfs {
		f.truth("read-only", true)
		f.add("read-only-tmpfs", strconv.FormatBool(x.Scratch))
	}
	for _, path := range slices.Sorted(maps.Keys(x.Host.Tmpfs)) {
		f.add("tmpfs", strings.TrimSuffix(path+":"+x.Host.Tmpfs[path], ":"))
	}
	for _, m := range x.Mounts {
		source, options := m.Source, []string{"rw"}
		if m.Type == "volume" {
			source = m.Name
		}
		if !m.RW {
			options[0] = "ro"
		}
		for _, option := range m.Options {
			if option != "" && option != "bind" {
				options = append(options, option)
			}
		}
		f.add("volume", source+":"+m.Destination+":"+strings.Join(options, ","))
	}
}
