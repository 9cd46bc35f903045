package oci

import (
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/godwit/godwit/internal/engine"
)

// Bounds of a definition, which may come from another node.
const (
	maxExtra  = 1 << 20
	maxLayers = 256
)

var (
	diffIDPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	stdioPattern  = regexp.MustCompile(`^(/dev/[a-z0-9/]{1,32}|pipe:\[[0-9]{1,20}\])?$`)
)

// Decode reads an engine's part of a definition (Definition.Engine), and refuses a definition that the
// engine could not make or that would do harm. check tests what only the engine knows.
func Decode[Extra any](title string, d engine.Definition, check func(x Extra) error) (Extra, error) {
	var x Extra
	err := checkSize(title, d)
	if err == nil {
		err = json.Unmarshal(d.Engine, &x)
	}
	if err == nil {
		err = check(x)
	}
	if err != nil {
		return x, fmt.Errorf("definition of container %.80q is not valid: %w", d.Name, err)
	}
	return x, nil
}

func checkSize(title string, d engine.Definition) error {
	switch {
	case !idPattern.MatchString(d.ID):
		return fmt.Errorf("id %.80q: must be 64 lower-case hexadecimal digits", d.ID)
	case len(d.Engine) > maxExtra:
		return fmt.Errorf("%s's part has %d bytes: at most %d", title, len(d.Engine), maxExtra)
	}
	return nil
}

// CheckLayers requires the layers of an image to be DiffIDs.
func CheckLayers(layers []string) error {
	if len(layers) == 0 || len(layers) > maxLayers {
		return fmt.Errorf("%d layers: must be 1 to %d", len(layers), maxLayers)
	}
	for _, layer := range layers {
		if !diffIDPattern.MatchString(layer) {
			return fmt.Errorf("layer %.80q: must be sha256: and 64 hexadecimal digits", layer)
		}
	}
	return nil
}

// CheckStdio requires the names of stdin, stdout and stderr in the images, in CRIU's notation.
func CheckStdio(names []string) error {
	if len(names) != 3 {
		return fmt.Errorf("%d standard descriptors, not 3", len(names))
	}
	for _, name := range names {
		if !stdioPattern.MatchString(name) {
			return fmt.Errorf("standard descriptor %.40q", name)
		}
	}
	return nil
}
