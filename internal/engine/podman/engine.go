package podman

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
)

// Name of the engine.
const (
	Name  = "podman"
	title = "Podman"
)

// oldest is the oldest version that was tested.
const oldest = "4.3"

// DefaultRoot is Podman's default directory for its files (containers-storage.conf(5)).
const DefaultRoot = "/var/lib/containers/storage"

// stateFile returns the path of a runtime's state of a container (runc(8), crun(1)); "" if containers of
// this runtime cannot leave.
func stateFile(runtime, id string) string {
	switch filepath.Base(runtime) {
	case "runc", oci.Runtime, shim.Program:
		return filepath.Join("/run/runc", id, "state.json")
	case "crun":
		return filepath.Join("/run/crun", id, "status")
	}
	return ""
}

// Config says where the engine keeps its files.
type Config struct {
	StateDir   string // the agent's; this engine's records are below it
	RunDir     string
	Executable string // this program; "" for the running one
}

// Engine moves containers of Podman. It implements engine.Engine.
type Engine struct {
	*oci.Engine
	podman *adapter
}

var _ engine.Engine = (*Engine)(nil)

// New makes the engine. Podman need not be installed.
func New(config Config) (*Engine, error) {
	made := newAdapter(filepath.Join(config.StateDir, "engines", Name+"-images"))
	e, err := oci.New(oci.Config{StateDir: config.StateDir, RunDir: config.RunDir,
		Executable: config.Executable}, made)
	if err != nil {
		return nil, err
	}
	return &Engine{Engine: e, podman: made}, nil
}

// SweepImages removes what was made for images that have not come.
func (e *Engine) SweepImages(ctx context.Context, _ time.Time) error {
	images := e.podman.images
	if err := images.begin(ctx); err != nil {
		return err
	}
	defer images.end()
	return images.sweep(ctx)
}

// adapter uses Podman's command line.
type adapter struct {
	guards
	root string // Podman's storage

	images *imageStore
	routed routedCache

	mu   sync.Mutex
	info *info // once known
}

var _ oci.Adapter = (*adapter)(nil)

// newAdapter makes the adapter, with a directory for arriving images.
func newAdapter(coming string) *adapter {
	a := &adapter{root: DefaultRoot, guards: guards{hooksDir}, routed: routedCache{directory: networksDir}}
	a.images = &imageStore{podman: a, coming: coming, taking: make(chan struct{}, 1)}
	return a
}

// Name of the engine.
func (a *adapter) Name() string { return Name }

// Title returns the engine's name in messages.
func (a *adapter) Title() string { return title }

// Away says why Podman is not available: it is not installed, or has never been used.
func (a *adapter) Away() error {
	_, err := exec.LookPath("podman")
	if err == nil {
		_, err = os.Stat(filepath.Dir(a.index()))
	}
	if err != nil {
		return fmt.Errorf("Podman: %w: %w", engine.ErrAway, err) //nolint:staticcheck // its name
	}
	return nil
}

// failed is the error of a command, with Podman's message.
type failed struct {
	code   int
	stderr string
}

func (f *failed) Error() string {
	if f.stderr == "" {
		return fmt.Sprintf("exit code %d", f.code)
	}
	return f.stderr
}

// quiet suppresses Podman 5's warning about cgroups version 1, which would become part of each error
// message.
const quiet = "PODMAN_IGNORE_CGROUPSV1_WARNING=1"

// podman runs a command of Podman and returns its output, even if the command fails. Error: *failed.
func podman(ctx context.Context, args ...string) ([]byte, error) {
	return run(ctx, exec.CommandContext(ctx, "podman", args...))
}

func run(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	return runBy(ctx, cmd, (*exec.Cmd).Start)
}

// runBy is run with a function that starts the command.
func runBy(ctx context.Context, cmd *exec.Cmd, start func(*exec.Cmd) error) ([]byte, error) {
	cmd.Env = append(cmd.Environ(), quiet)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	var ended *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &ended) {
		err = &failed{ended.ExitCode(), strings.TrimPrefix(strings.TrimSpace(stderr.String()), "Error: ")}
	}
	return stdout.Bytes(), errors.Join(ctx.Err(), err)
}

// says reports whether a command failed with a message of Podman that contains one of these texts.
func says(err error, words ...string) bool {
	var why *failed
	if !errors.As(err, &why) {
		return false
	}
	for _, one := range words {
		if strings.Contains(why.stderr, one) {
			return true
		}
	}
	return false
}

// Podman's messages about missing containers and volumes, and about volumes in use.
const (
	saysNoContainer = "no such container"
	saysNoObject    = "no such object"
	saysNoVolume    = "no such volume"
	saysUsed        = "being used"
)

// info is Podman's description of itself.
type info struct {
	Store struct {
		Driver     string `json:"graphDriverName"`
		GraphRoot  string `json:"graphRoot"`
		VolumePath string `json:"volumePath"`
	} `json:"store"`
	Version struct {
		Version string `json:"Version"`
	} `json:"version"`
}

// about queries Podman about itself, once.
func (a *adapter) about(ctx context.Context) (info, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.info != nil {
		return *a.info, nil
	}
	told, err := askInfo(ctx)
	if err != nil {
		return info{}, err
	}
	a.info = &told
	return told, nil
}

// askInfo queries Podman about itself, with these global flags.
func askInfo(ctx context.Context, flags ...string) (info, error) {
	var told info
	data, err := podman(ctx, append(flags, "info", "--format", "json")...)
	if err == nil {
		err = json.Unmarshal(data, &told)
	}
	if err != nil {
		return told, fmt.Errorf("ask Podman about itself: %w", err)
	}
	return told, nil
}

// Process finds a container's monitor and its runtime's state of it.
func (a *adapter) Process(f oci.Container) (oci.Process, error) {
	found := native(f)
	if found.State.ConmonPID <= 0 || found.OCIConfigPath == "" {
		return oci.Process{},
			fmt.Errorf("container %s: Podman does not say where its monitor and its bundle are", found.Name)
	}
	state := stateFile(found.OCIRuntime, found.ID)
	if state == "" {
		return oci.Process{}, fmt.Errorf("container %s: runtime %s: only containers of runc and crun can "+
			"be moved: start it with podman --runtime runc", found.Name, found.OCIRuntime)
	}
	return oci.Process{Reader: found.State.ConmonPID, Bundle: filepath.Dir(found.OCIConfigPath),
		State: state}, nil
}

// RestoreDir returns the container's ID, by which its runtime knows it, too.
func (a *adapter) RestoreDir(engineID string) string { return engineID }
