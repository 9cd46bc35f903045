package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/engine"
)

// Bounds of a definition, which may come from another node.
const (
	maxLayers  = 256
	maxStrings = 4096
	maxBytes   = 1 << 20
)

var (
	diffIDPattern   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	hostnamePattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$`)
	stdioPattern    = regexp.MustCompile(`^(/dev/[a-z0-9/]{1,32}|pipe:\[[0-9]{1,20}\])?$`)
)

// extra is this engine's part of a definition (Definition.Engine).
type extra struct {
	// Stdio names the container's stdin, stdout and stderr as they are in the images. runc reads these
	// names when it starts, at the target before there are images.
	Stdio []string `json:"stdio,omitempty"`
}

// validate refuses a definition that this engine could not run, or that would do harm.
func validate(d engine.Definition) error {
	checks := []func(engine.Definition) error{
		validateNames, validateLayers, validateProcess, validateVolumes, validateLimits, validateNetwork,
		validateLife,
	}
	for _, check := range checks {
		if err := check(d); err != nil {
			return fmt.Errorf("%w: %w", engine.ErrInvalid, err)
		}
	}
	_, err := decodeExtra(d)
	return err
}

func validateNames(d engine.Definition) error {
	switch {
	case !idPattern.MatchString(d.ID):
		return fmt.Errorf("id %.80q: must be 64 lower-case hexadecimal digits", d.ID)
	case !namePattern.MatchString(d.Name):
		return fmt.Errorf("name %.80q: must begin with a letter or digit and have at most 63 of a-z A-Z "+
			"0-9 _ . -", d.Name)
	case d.Hostname != "" && !hostnamePattern.MatchString(d.Hostname):
		return fmt.Errorf("hostname %.80q: must have at most 63 letters, digits, dots and hyphens",
			d.Hostname)
	}
	return nil
}

func validateLayers(d engine.Definition) error {
	if len(d.Layers) == 0 || len(d.Layers) > maxLayers {
		return fmt.Errorf("%d layers: must be 1 to %d", len(d.Layers), maxLayers)
	}
	for _, layer := range d.Layers {
		if !diffIDPattern.MatchString(layer) {
			return fmt.Errorf("layer %.80q: must be sha256: and 64 hexadecimal digits", layer)
		}
	}
	return nil
}

func validateProcess(d engine.Definition) error {
	if len(d.Args) == 0 || d.Args[0] == "" {
		return errors.New("no command: neither the image nor the caller gives one")
	}
	total := len(d.Dir) + len(d.User)
	for _, list := range [][]string{d.Args, d.Env} {
		if len(list) > maxStrings {
			return fmt.Errorf("%d arguments or variables: at most %d", len(list), maxStrings)
		}
		for _, s := range list {
			if total += len(s); strings.ContainsRune(s, 0) {
				return fmt.Errorf("argument or variable %.40q contains a zero byte", s)
			}
		}
	}
	if total > maxBytes {
		return fmt.Errorf("arguments and environment have %d bytes: at most %d", total, maxBytes)
	}
	for _, variable := range d.Env {
		if strings.IndexByte(variable, '=') <= 0 {
			return fmt.Errorf("variable %.40q: must be NAME=value", variable)
		}
	}
	if d.Dir != "" && (!path.IsAbs(d.Dir) || strings.ContainsRune(d.Dir, 0)) {
		return fmt.Errorf("working directory %.80q: must be an absolute path", d.Dir)
	}
	return nil
}

func validateLimits(d engine.Definition) error {
	limits := d.Limits
	switch {
	case limits.MemoryBytes < 0 || limits.MemoryBytes > 0 && limits.MemoryBytes < minMemoryBytes:
		return fmt.Errorf("memory limit of %d bytes: must be at least %d", limits.MemoryBytes,
			int64(minMemoryBytes))
	case !(limits.CPUs >= 0 && limits.CPUs <= 8192) || limits.CPUs > 0 && limits.CPUs < 0.01:
		return fmt.Errorf("limit of %g CPUs: must be from 0.01 to 8192", limits.CPUs)
	case limits.Pids < 0:
		return fmt.Errorf("limit of %d processes: must not be negative", limits.Pids)
	}
	return nil
}

func validateNetwork(d engine.Definition) error {
	if d.Network.Bridge != "" {
		return fmt.Errorf("network %.40q: this engine has none", d.Network.Bridge)
	}
	if d.Network.MAC == "" {
		return nil
	}
	if _, err := net.ParseMAC(d.Network.MAC); err != nil {
		return fmt.Errorf("hardware address %.40q: %w", d.Network.MAC, err)
	}
	return nil
}

// validateLife checks how a container is stopped and started.
func validateLife(d engine.Definition) error {
	if _, err := engine.ParseSignal(d.StopSignal); err != nil {
		return fmt.Errorf("stop signal: %w", err)
	}
	for what, seconds := range map[string]float64{"stop": d.StopTimeout, "start": d.StartTimeout} {
		if err := engine.CheckLifeTimeout(seconds); err != nil {
			return fmt.Errorf("%s timeout: %w", what, err)
		}
	}
	if _, err := engine.ParseRestartPolicy(d.Restart); err != nil {
		return err
	}
	if d.Health == nil {
		return nil
	}
	if err := d.Health.Check(); err != nil {
		return err
	}
	return validateArguments(d.Health.Command)
}

// validateArguments bounds the arguments of a command.
func validateArguments(arguments []string) error {
	total := 0
	for _, argument := range arguments {
		if total += len(argument); strings.ContainsRune(argument, 0) {
			return fmt.Errorf("argument %.40q contains a zero byte", argument)
		}
	}
	if total > maxBytes || len(arguments) > maxStrings {
		return fmt.Errorf("%d arguments with %d bytes: at most %d with %d", len(arguments), total, maxStrings,
			maxBytes)
	}
	return nil
}

// decodeExtra reads this engine's part of a definition.
func decodeExtra(d engine.Definition) (extra, error) {
	var x extra
	if len(d.Engine) == 0 {
		return x, nil
	}
	if err := json.Unmarshal(d.Engine, &x); err != nil {
		return x, fmt.Errorf("engine part of the definition of %s: %w", d.Name, err)
	}
	if len(x.Stdio) != 0 && len(x.Stdio) != 3 {
		return x, fmt.Errorf("engine part of the definition of %s names %d standard descriptors, not 3",
			d.Name, len(x.Stdio))
	}
	for _, name := range x.Stdio {
		if !stdioPattern.MatchString(name) {
			return x, fmt.Errorf("engine part of the definition of %s: standard descriptor %.40q", d.Name,
				name)
		}
	}
	return x, nil
}

// own returns a definition as it is stored: without parts that belong to a move, or to another node.
func own(d engine.Definition) engine.Definition {
	d.Engine = nil // it names descriptors of another node
	d.Volumes = slices.Clone(d.Volumes)
	for i := range d.Volumes {
		d.Volumes[i].Stays = false
	}
	return d
}

// encodeExtra writes this engine's part of a definition.
func encodeExtra(x extra) json.RawMessage {
	data, err := json.Marshal(x)
	if err != nil { // strings always encode
		return nil
	}
	return data
}
