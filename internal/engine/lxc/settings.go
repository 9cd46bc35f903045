package lxc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/network/nsstate"
)

// LXC lets containers write to /proc/sys/net, and systemd does as it starts. These settings move beside
// CRIU's images.

// settingsName is the file with these settings.
const settingsName = "godwit-settings.json"

// maxSettings bounds that file.
const maxSettings = 4 << 20

func writeSettings(directory string, settings map[string]string) error {
	data, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(directory, settingsName), data, 0o600)
}

// readSettings reads the settings that another node has sent. An older version of Godwit sends none.
func readSettings(directory string) (map[string]string, error) {
	text, err := readBounded(filepath.Join(directory, settingsName), maxSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(text) > maxSettings {
		err = fmt.Errorf("they take more than %d bytes", maxSettings)
	}
	var settings map[string]string
	if err == nil {
		err = json.Unmarshal([]byte(text), &settings)
	}
	if err == nil {
		err = nsstate.Check(settings)
	}
	return settings, err
}

// applySettings restores the settings of the container's network namespace before its sockets exist.
func applySettings(directory, netns string) error {
	settings, err := readSettings(directory)
	if err == nil {
		err = nsstate.Apply(netns, settings)
	}
	if err != nil {
		return fmt.Errorf("settings of the container's network: %w", err)
	}
	return nil
}
