package image

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/filestest"
	"github.com/godwit/godwit/internal/files/image"
)

// TestMain runs the tests in a separate mount namespace, so that none of their mounts can stay behind.
func TestMain(m *testing.M) {
	os.Exit(filestest.Isolated(0, func() int { return withCache(m) }))
}

// cacheDir is the cache of all tests, so that packages are fetched once.
var cacheDir string

func withCache(m *testing.M) int {
	dir, err := os.MkdirTemp("", "godwit-lab-image-cache-")
	if err != nil {
		fmt.Fprintf(os.Stderr, "make a cache: %v\n", err)
		return 1
	}
	defer os.RemoveAll(dir)
	cacheDir = dir
	return m.Run()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// runcPath finds runc as Godwit's programs do.
func runcPath(t *testing.T) string {
	t.Helper()
	for _, candidate := range []string{os.Getenv("GODWIT_RUNC"), "/opt/godwit/bin/runc", "runc"} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	t.Fatal("runc is missing: run \"make setup\"")
	return ""
}

// container is an image that runs in runc.
type container struct {
	t    *testing.T
	runc string
	root string
	id   string
	// rootfs is where its files are.
	rootfs string
}

// start loads an image, mounts its layers and runs its command, with Docker's capabilities and system call
// filter.
func start(t *testing.T, name string) *container {
	t.Helper()
	path, err := Build(t.Context(), name, cacheDir)
	check(t, err)
	return startArchive(t, name, path)
}

// startArchive does the same with an existing archive.
func startArchive(t *testing.T, name, path string) *container {
	t.Helper()
	ctx := t.Context()
	dir, err := os.MkdirTemp("", "godwit-lab-image-")
	check(t, err)
	t.Cleanup(func() { check(t, files.RemoveTree(dir)) })
	store, err := image.Open(filepath.Join(dir, "state"))
	check(t, err)
	_, err = store.Load(ctx, path, nil)
	check(t, err)
	loaded, err := store.Resolve(name)
	check(t, err)
	check(t, mountLayers(t, store, loaded, dir))
	c := &container{t: t, runc: runcPath(t), root: filepath.Join(dir, "runc"),
		id: "labimage-" + filepath.Base(dir)}
	c.rootfs = filepath.Join(dir, "rootfs")
	check(t, writeSpec(dir, loaded))
	command := exec.Command(c.runc, "--root", c.root, "run", "--detach", "--bundle", dir, c.id)
	output, err := os.Create(filepath.Join(dir, "output"))
	check(t, err)
	defer output.Close()
	command.Stdout, command.Stderr = output, output
	if err := command.Run(); err != nil {
		raw, _ := os.ReadFile(output.Name())
		t.Fatalf("runc run: %v: %s", err, raw)
	}
	t.Cleanup(func() { check(t, exec.Command(c.runc, "--root", c.root, "delete", "--force", c.id).Run()) })
	return c
}

func mountLayers(t *testing.T, store *image.Store, loaded image.Image, dir string) error {
	t.Helper()
	var lower []string
	for _, diffID := range slices.Backward(loaded.Layers) {
		path, err := store.LayerPath(diffID)
		check(t, err)
		lower = append(lower, path)
	}
	for _, sub := range []string{"upper", "work", "rootfs"} {
		check(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", strings.Join(lower, ":"), dir,
		dir)
	target := filepath.Join(dir, "rootfs")
	t.Cleanup(func() { check(t, unix.Unmount(target, 0)) })
	return unix.Mount("overlay", target, "overlay", 0, options)
}

func writeSpec(dir string, loaded image.Image) error {
	capabilities := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD",
		"CAP_NET_RAW", "CAP_SETGID",
		"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL",
		"CAP_AUDIT_WRITE"}
	spec := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: loaded.Config.Cmd, Env: loaded.Config.Env,
			Cwd: "/" + strings.TrimPrefix(loaded.Config.WorkingDir, "/"),
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities,
				Permitted: capabilities},
			NoNewPrivileges: true,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.MountNamespace},
			{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
	filter, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		return err
	}
	spec.Linux.Seccomp = filter
	raw, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600)
}

// answers runs a program in the container until it prints what is expected.
func (c *container) answers(want string, args ...string) {
	c.t.Helper()
	var output []byte
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(
		20 * time.Millisecond) {
		output, _ = exec.Command(c.runc,
			append([]string{"--root", c.root, "exec", c.id}, args...)...).CombinedOutput()
		if strings.Contains(string(output), want) {
			return
		}
	}
	c.t.Errorf("%q answered %q, want %q", args, output, want)
}

func TestRedisRuns(t *testing.T) {
	c := start(t, "redis")
	c.answers("PONG", "redis-cli", "ping")
	c.answers("no", "redis-cli", "config", "get", "protected-mode")
	c.answers("0.0.0.0:6379", "netstat", "-ltn")
}

func TestNginxRuns(t *testing.T) {
	c := start(t, "nginx")
	c.answers("Welcome to nginx", "wget", "-q", "-O", "-", "http://127.0.0.1/")
}

func TestSQLiteRuns(t *testing.T) {
	c := start(t, "sqlite")
	c.answers("3", "sqlite3", ":memory:", "SELECT 1 + 2")
}

func TestImageOfProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", program, "./testdata/program")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	const bulk = bulkFileBytes + 5
	path, err := OfProgram("mine", program, dir, bulk, 1)
	check(t, err)
	left, err := os.ReadDir(dir)
	check(t, err)
	if len(left) != 1 {
		t.Errorf("beside the image there is something else: %v", left)
	}
	c := startArchive(t, "mine", path)
	c.answers("what runs", ProgramPath, "answer")
	for name, size := range map[string]int64{"bulk-0/0": bulkFileBytes, "bulk-0/1": 5, "bulk-1/0": 1} {
		info, err := os.Stat(filepath.Join(c.rootfs, name))
		if err != nil || info.Size() != size {
			t.Errorf("%s: %+v, %v, want %d bytes", name, info, err, size)
		}
	}
}

func TestImageOfDynamicProgram(t *testing.T) {
	if _, err := OfProgram("mine", "/bin/sh", t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "dynamically") {
		t.Errorf("a program that needs libraries: %v", err)
	}
}
