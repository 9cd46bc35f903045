package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/patience"
)

// machine answers the checks' questions; tests supply the answers.
type machine struct {
	user            func() int
	capabilities    func() (uint64, error) // effective ones, as bits
	findTool        func(name, variable string) (string, error)
	output          func(ctx context.Context, program string, args ...string) (string, error)
	readFile        func(path string) ([]byte, error)
	loopbackUp      func() (bool, error)
	inNamespace     func(func() error) error // runs in a new network namespace
	fileSystem      func(path string) (unix.Statfs_t, error)
	memoryAvailable func() (int64, error)
	traceScope      func() string // kernel.yama.ptrace_scope; empty without Yama
	writeProtect    func() error  // whether the kernel supports write-protection tracking
	softDirty       func() error  // whether the kernel supports soft-dirty tracking
	state           string
}

// thisMachine returns the real machine.
func thisMachine(state string) machine {
	return machine{
		user:            os.Geteuid,
		capabilities:    capabilities,
		findTool:        findTool,
		output:          output,
		readFile:        os.ReadFile,
		loopbackUp:      loopbackUp,
		inNamespace:     inNamespace,
		fileSystem:      fileSystem,
		memoryAvailable: kernel.MemoryAvailable,
		traceScope:      traceScope,
		writeProtect:    kernel.ProbeWriteProtect,
		softDirty:       kernel.ProbeSoftDirty,
		state:           state,
	}
}

func capabilities() (uint64, error) {
	content, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, errors.New("/proc/self/status has no line CapEff")
}

func traceScope() string {
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return "" // the kernel has no Yama
	}
	return string(scope)
}

// versionLimit is how long a program may take to print its version.
var versionLimit = patience.Limit{Still: 10 * time.Second, Most: 2 * time.Minute}

func output(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := versionLimit.For(ctx, program, patience.Programs(filepath.Base(program)))
	defer cancel()
	said, err := exec.CommandContext(ctx, program, args...).Output()
	return string(said), patience.Explain(ctx, err)
}

func loopbackUp() (bool, error) {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return false, fmt.Errorf("find the loopback interface: %w", err)
	}
	return loopback.Attrs().RawFlags&unix.IFF_UP != 0, nil
}

func inNamespace(function func() error) error {
	n, err := newNamespace()
	if err != nil {
		return err
	}
	defer n.close()
	return n.do(function)
}

// fileSystem describes the file system of a path, or of the place where it will be made.
func fileSystem(path string) (unix.Statfs_t, error) {
	for {
		var stat unix.Statfs_t
		err := unix.Statfs(path, &stat)
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return stat, err
		}
		path = filepath.Dir(path)
	}
}

// host describes this machine.
func host() Host {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Host{}
	}
	return Host{
		Name:         unix.ByteSliceToString(name.Nodename[:]),
		System:       system("/etc/os-release"),
		Kernel:       unix.ByteSliceToString(name.Release[:]),
		Architecture: unix.ByteSliceToString(name.Machine[:]),
	}
}

// system returns the distribution's name and version; see os-release(5).
func system(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return "Linux"
	}
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(value, `"'`)
		}
	}
	return "Linux"
}
