package nsstate

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// Kernel settings can also be moved with the container: they are files.

// ErrInvalid is the error for settings that no namespace has; another node may send such settings.
var ErrInvalid = errors.New("invalid setting")

// maxCarried limits the number of settings that move.
const maxCarried = 512

var (
	namePattern  = regexp.MustCompile(`^[a-z0-9]+(/[a-z0-9_]+){1,4}$`)
	valuePattern = regexp.MustCompile(`^[ -~]*$`)
)

// Changed reads the settings of the namespace at path that differ from a new one, by their names below
// /proc/sys/net.
func (f Fresh) Changed(path string) (map[string]string, error) {
	ns, err := open(path)
	if err != nil || !ns.IsOpen() {
		return nil, err
	}
	defer ns.Close()
	var all map[string]string
	err = inside(ns, func() error {
		all = f.changed()
		return nil
	})
	if err == nil && len(all) > maxCarried {
		err = fmt.Errorf("%d settings differ from those of a new namespace; at most %d can move", len(all),
			maxCarried)
	}
	return all, err
}

// Check refuses settings that Changed does not return.
func Check(settings map[string]string) error {
	if len(settings) > maxCarried {
		return fmt.Errorf("%w: there are %d, at most %d move", ErrInvalid, len(settings), maxCarried)
	}
	for name, value := range settings {
		sound := namePattern.MatchString(name) && valuePattern.MatchString(value) && len(value) <= maxSetting
		if !sound || isLeftOut(name) {
			return fmt.Errorf("%w: net/%.80q = %.80q", ErrInvalid, name, value)
		}
	}
	return nil
}

// Apply writes these settings in the namespace at path. Some must be written before others, so Apply tries
// those that fail again.
func Apply(path string, settings map[string]string) error {
	if err := Check(settings); err != nil || len(settings) == 0 {
		return err
	}
	ns, err := open(path)
	if err == nil && !ns.IsOpen() {
		err = fmt.Errorf("network namespace %s: %w", path, os.ErrNotExist)
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	return inside(ns, func() error {
		names := slices.Sorted(maps.Keys(settings))
		slices.SortStableFunc(names, func(a, b string) int { return weight(a) - weight(b) })
		for range 2 {
			err = nil
			for _, name := range names {
				err = errors.Join(err, writeSetting(name, settings[name]))
			}
			if err == nil {
				break
			}
		}
		return err
	})
}

// weight puts forwarding first, because it resets other settings (Documentation/networking/ip-sysctl.rst).
func weight(name string) int {
	if name == "ipv4/ip_forward" || name == "ipv6/conf/all/forwarding" {
		return 0
	}
	return 1
}

func writeSetting(name, value string) error {
	if now, ok := readSetting(name); ok && now == value {
		return nil
	}
	file, err := os.OpenFile(filepath.Join(settingsDir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}
