package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Errors that callers act on; they come wrapped with the cause, the object and a remedy.
var (
	ErrNotFound = errors.New("no such image")
	ErrInUse    = errors.New("the image is in use")
	ErrBusy     = errors.New("images are being loaded")
	ErrInvalid  = errors.New("not a usable image")
)

// Image is an image whose parts are all here.
type Image struct {
	ID           string    `json:"id"`     // sha256: and the digest of its configuration
	Names        []string  `json:"names"`  // short, as users write them
	Layers       []string  `json:"layers"` // DiffIDs, lowest first
	Config       Config    `json:"config"`
	Size         int64     `json:"size_bytes"` // of the files in its layers
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
}

// Config is an image's description of how to run it.
type Config struct {
	Entrypoint   []string          `json:"entrypoint"`
	Cmd          []string          `json:"cmd"`
	Env          []string          `json:"env"`
	User         string            `json:"user"`
	WorkingDir   string            `json:"working_dir"`
	StopSignal   string            `json:"stop_signal"`
	Health       *Health           `json:"health,omitempty"` // nil: none
	ExposedPorts []string          `json:"exposed_ports"`
	Volumes      []string          `json:"volumes"`
	Labels       map[string]string `json:"labels"`
}

// Health is an image's health check (Docker's HEALTHCHECK). Zero means the engine's default.
type Health struct {
	Command     []string      `json:"command"` // empty: no check
	Interval    time.Duration `json:"interval"`
	Timeout     time.Duration `json:"timeout"`
	StartPeriod time.Duration `json:"start_period"`
	Retries     int           `json:"retries"`
}

// healthOf parses a health check; its first word gives the meaning of the others.
func healthOf(config v1.Config) *Health {
	check := config.Healthcheck
	if check == nil || len(check.Test) == 0 {
		return nil
	}
	health := &Health{Interval: check.Interval, Timeout: check.Timeout, StartPeriod: check.StartPeriod,
		Retries: check.Retries}
	switch check.Test[0] {
	case "CMD":
		health.Command = check.Test[1:]
	case "CMD-SHELL":
		shell := config.Shell
		if len(shell) == 0 {
			shell = []string{"/bin/sh", "-c"}
		}
		health.Command = slices.Concat(shell, check.Test[1:])
	}
	return health
}

// MaxConfig is the largest configuration that is accepted, in bytes.
const MaxConfig = 8 << 20

// maxLayers is below the limit of an overlay mount, 500 (OVL_MAX_STACK); Docker allows 127.
const maxLayers = 256

// CheckDigest refuses strings that are not the name of a layer or the ID of an image.
func CheckDigest(digest string) error {
	if !digestPattern.MatchString(digest) {
		return fmt.Errorf("%w: %.80q is not a SHA-256 digest", ErrInvalid, digest)
	}
	return nil
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Parse reads an image's configuration, which must have the given digest.
func Parse(imageID string, config []byte) (Image, error) {
	if got := digestOf(config); got != imageID {
		return Image{}, fmt.Errorf("%w: its configuration has digest %s instead of %.80q", ErrInvalid, got,
			imageID)
	}
	return parseConfig(config)
}

// parseConfig checks a configuration and extracts the relevant parts.
func parseConfig(raw []byte) (Image, error) {
	if len(raw) > MaxConfig {
		return Image{}, fmt.Errorf("%w: its configuration has %d bytes, at most %d are allowed", ErrInvalid,
			len(raw), MaxConfig)
	}
	var file v1.ConfigFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return Image{}, fmt.Errorf("%w: its configuration: %w", ErrInvalid, err)
	}
	image := Image{ID: digestOf(raw), Created: file.Created.Time, Architecture: file.Architecture}
	if err := checkPlatform(&file); err != nil {
		return Image{}, err
	}
	if n := len(file.RootFS.DiffIDs); n == 0 || n > maxLayers {
		return Image{}, fmt.Errorf("%w: it has %d layers; 1 to %d are possible", ErrInvalid, n, maxLayers)
	}
	for _, diffID := range file.RootFS.DiffIDs {
		if !digestPattern.MatchString(diffID.String()) {
			return Image{}, fmt.Errorf("%w: layer %.80q is not named by a SHA-256 digest", ErrInvalid, diffID)
		}
		image.Layers = append(image.Layers, diffID.String())
	}
	image.Config = Config{
		Entrypoint: file.Config.Entrypoint, Cmd: file.Config.Cmd, Env: file.Config.Env,
		User:       file.Config.User,
		WorkingDir: file.Config.WorkingDir, StopSignal: file.Config.StopSignal, Labels: file.Config.Labels,
		Health:       healthOf(file.Config),
		ExposedPorts: sortedKeys(file.Config.ExposedPorts), Volumes: sortedKeys(file.Config.Volumes),
	}
	return image, nil
}

// checkPlatform refuses images that cannot run here. Hand-made images may not name a platform.
func checkPlatform(file *v1.ConfigFile) error {
	if file.OS != "" && file.OS != "linux" {
		return fmt.Errorf("%w: it is for %.40q; only Linux containers can run here", ErrInvalid, file.OS)
	}
	if file.Architecture != "" && file.Architecture != runtime.GOARCH {
		return fmt.Errorf("%w: it is for %.40q, this node is %s; get the image for %s", ErrInvalid,
			file.Architecture, runtime.GOARCH, runtime.GOARCH)
	}
	return nil
}

func sortedKeys(set map[string]struct{}) []string {
	keys := make([]string, 0, len(set))
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func digestOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}
