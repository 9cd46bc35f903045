package podman

import (
	"strings"
	"time"
)

// inspected is the part of `podman container inspect` that this package needs.
type inspected struct {
	ID            string    `json:"Id"`
	Created       time.Time `json:"Created"`
	Image         string    `json:"Image"`
	ImageName     string    `json:"ImageName"`
	Rootfs        string    `json:"Rootfs"`
	Pod           string    `json:"Pod"`
	Name          string    `json:"Name"`
	OCIConfigPath string    `json:"OCIConfigPath"`
	OCIRuntime    string    `json:"OCIRuntime"`
	StaticDir     string    `json:"StaticDir"`
	IsInfra       bool      `json:"IsInfra"`
	IsService     bool      `json:"IsService"`
	Dependencies  []string  `json:"Dependencies"`
	State         struct {
		Status     string    `json:"Status"`
		Running    bool      `json:"Running"`
		Paused     bool      `json:"Paused"`
		PID        int       `json:"Pid"`
		ConmonPID  int       `json:"ConmonPid"`
		ExitCode   int       `json:"ExitCode"`
		StartedAt  time.Time `json:"StartedAt"`
		FinishedAt time.Time `json:"FinishedAt"`
	} `json:"State"`
	GraphDriver struct {
		Name string            `json:"Name"`
		Data map[string]string `json:"Data"`
	} `json:"GraphDriver"`
	Mounts []mount   `json:"Mounts"`
	Config ownConfig `json:"Config"`
	Host   host      `json:"HostConfig"`

	NetworkSettings struct {
		Networks map[string]connection `json:"Networks"`
	} `json:"NetworkSettings"`
}

// ownConfig is a container's configuration, with the parts that stay on this node.
type ownConfig struct {
	config
	// the command that made the container; a program that uses Podman's API may leave it out
	CreateCommand []string `json:"CreateCommand"`
}

// connection is a container's place in a network.
type connection struct {
	IPAddress   string   `json:"IPAddress"`
	IPPrefixLen int      `json:"IPPrefixLen"`
	GlobalIPv6  string   `json:"GlobalIPv6Address"`
	MAC         string   `json:"MacAddress"`
	Aliases     []string `json:"Aliases"`
}

// mount is a directory of the node in a container.
type mount struct {
	Type        string   `json:"Type"`
	Name        string   `json:"Name,omitempty"`
	Source      string   `json:"Source"`
	Destination string   `json:"Destination"`
	Driver      string   `json:"Driver,omitempty"`
	Options     []string `json:"Options,omitempty"`
	RW          bool     `json:"RW"`
	Propagation string   `json:"Propagation,omitempty"`
}

// config is a container's own configuration, and host its settings that concern the node. Both travel
// between nodes. Settings that are not in them do not move: they are refused (obstacles) or left to Podman.
type config struct {
	Hostname     string            `json:"Hostname"`
	User         string            `json:"User"`
	TTY          bool              `json:"Tty"`
	OpenStdin    bool              `json:"OpenStdin"`
	Env          []string          `json:"Env"`
	Cmd          []string          `json:"Cmd"`
	WorkingDir   string            `json:"WorkingDir"`
	Labels       map[string]string `json:"Labels"`
	Annotations  map[string]string `json:"Annotations"`
	StopSignal   signal            `json:"StopSignal"`
	StopTimeout  uint              `json:"StopTimeout"`
	Healthcheck  *healthcheck      `json:"Healthcheck,omitempty"`
	Timezone     string            `json:"Timezone,omitempty"`
	Umask        string            `json:"Umask,omitempty"`
	Passwd       *bool             `json:"Passwd,omitempty"`
	SystemdMode  bool              `json:"SystemdMode,omitempty"`
	Timeout      uint              `json:"Timeout"`
	ChrootDirs   []string          `json:"ChrootDirs,omitempty"`
	Secrets      []any             `json:"Secrets,omitempty"`
	SdNotifyMode string            `json:"sdNotifyMode,omitempty"`
}

type healthcheck struct {
	Test        []string      `json:"Test,omitempty"`
	StartPeriod time.Duration `json:"StartPeriod,omitempty"`
	Interval    time.Duration `json:"Interval,omitempty"`
	Timeout     time.Duration `json:"Timeout,omitempty"`
	Retries     int           `json:"Retries,omitempty"`
}

type host struct {
	spaces
	resolving
	privileges
	limits
	blockLimits

	LogConfig      logConfig             `json:"LogConfig"`
	NetworkMode    string                `json:"NetworkMode"`
	PortBindings   map[string][]binding  `json:"PortBindings"`
	RestartPolicy  restartPolicy         `json:"RestartPolicy"`
	AutoRemove     bool                  `json:"AutoRemove"`
	VolumesFrom    []string              `json:"VolumesFrom"`
	IpcMode        string                `json:"IpcMode"`
	PidMode        string                `json:"PidMode"`
	Privileged     bool                  `json:"Privileged"`
	ReadonlyRootfs bool                  `json:"ReadonlyRootfs"`
	Tmpfs          map[string]string     `json:"Tmpfs"`
	ShmSize        int64                 `json:"ShmSize"`
	Init           bool                  `json:"Init,omitempty"`
	IDMappings     *struct{ UIDMap any } `json:"IDMappings,omitempty"`
}

// spaces are the kinds of namespaces and control groups of a container.
type spaces struct {
	CgroupMode string `json:"CgroupMode"`
	Cgroups    string `json:"Cgroups"`
	UTSMode    string `json:"UTSMode"`
	UsernsMode string `json:"UsernsMode"`
}

// resolving says how a container finds names.
type resolving struct {
	DNS        []string `json:"Dns"`
	DNSOptions []string `json:"DnsOptions"`
	DNSSearch  []string `json:"DnsSearch"`
	ExtraHosts []string `json:"ExtraHosts"`
}

// privileges are what a container may do.
type privileges struct {
	CapAdd      []string `json:"CapAdd"`
	CapDrop     []string `json:"CapDrop"`
	GroupAdd    []string `json:"GroupAdd"`
	SecurityOpt []string `json:"SecurityOpt"`
}

// limits are those of a container, and its control group.
type limits struct {
	OomScoreAdj       int               `json:"OomScoreAdj"`
	CPUShares         uint64            `json:"CpuShares"`
	Memory            int64             `json:"Memory"`
	CgroupParent      string            `json:"CgroupParent"`
	CPUPeriod         uint64            `json:"CpuPeriod"`
	CPUQuota          int64             `json:"CpuQuota"`
	CPURealtimePeriod uint64            `json:"CpuRealtimePeriod"`
	CPURealtime       int64             `json:"CpuRealtimeRuntime"`
	CpusetCpus        string            `json:"CpusetCpus"`
	CpusetMems        string            `json:"CpusetMems"`
	Devices           []any             `json:"Devices"`
	MemoryReservation int64             `json:"MemoryReservation"`
	MemorySwap        int64             `json:"MemorySwap"`
	OomKillDisable    bool              `json:"OomKillDisable"`
	PidsLimit         int64             `json:"PidsLimit"`
	Ulimits           []ulimit          `json:"Ulimits"`
	CgroupConf        map[string]string `json:"CgroupConf"`
}

// blockLimits are those of reading and writing block devices.
type blockLimits struct {
	BlkioWeight       uint16 `json:"BlkioWeight"`
	BlkioWeightDevice []any  `json:"BlkioWeightDevice"`
	BlkioReadBps      []any  `json:"BlkioDeviceReadBps"`
	BlkioWriteBps     []any  `json:"BlkioDeviceWriteBps"`
	BlkioReadIOps     []any  `json:"BlkioDeviceReadIOps"`
	BlkioWriteIOps    []any  `json:"BlkioDeviceWriteIOps"`
}

// binding is a node's port through which a container's port can be reached.
type binding struct {
	HostIP   string `json:"HostIp"`
	HostPort string `json:"HostPort"`
}

type logConfig struct {
	Type string `json:"Type"`
	Path string `json:"Path"`
	Tag  string `json:"Tag"`
	Size string `json:"Size"`
}

type restartPolicy struct {
	Name              string `json:"Name"`
	MaximumRetryCount uint   `json:"MaximumRetryCount"`
}

type ulimit struct {
	Name string `json:"Name"`
	Soft int64  `json:"Soft"`
	Hard int64  `json:"Hard"`
}

// signal is a number in Podman 4, and a name in Podman 5.
type signal string

// UnmarshalJSON accepts numbers and names.
func (s *signal) UnmarshalJSON(data []byte) error {
	*s = signal(strings.Trim(string(data), `"`))
	return nil
}
