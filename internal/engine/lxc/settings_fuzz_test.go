package lxc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzSettings: settings from another node are refused, or are below /proc/sys/net.
func FuzzSettings(f *testing.F) {
	f.Add([]byte(`{"ipv4/ping_group_range":"0 2147483647","core/somaxconn":"321"}`))
	f.Add([]byte(`{"../kernel/core_pattern":"|/bin/sh"}`))
	f.Add([]byte(`{"ipv4/conf/eth0/rp_filter":"2"}`))
	f.Add([]byte(`null`))
	directory := f.TempDir()
	f.Fuzz(func(t *testing.T, document []byte) {
		if err := os.WriteFile(filepath.Join(directory, settingsName), document, 0o600); err != nil {
			t.Fatal(err)
		}
		settings, err := readSettings(directory)
		if err != nil {
			return
		}
		for name, value := range settings {
			inside := filepath.IsLocal(name) && !strings.Contains(name, ".")
			if !inside || strings.ContainsAny(value, "\n\x00") {
				t.Errorf("net/%q = %q is taken", name, value)
			}
		}
	})
}
