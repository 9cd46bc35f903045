package docker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testDaemon(t *testing.T, content string) DaemonConfig {
	t.Helper()
	dir := t.TempDir()
	c := DaemonConfig{Path: filepath.Join(dir, "etc", "daemon.json"), PIDFile: filepath.Join(dir, "pid"), Socket: filepath.Join(dir, "socket")}
	if content == "" {
		return c
	}
	if err := os.Mkdir(filepath.Dir(c.Path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDaemonConfig: what setup adds remove takes away, and all else stays.
func TestDaemonConfig(t *testing.T) {
	for before, after := range map[string]string{
		"": "", "{}": "", `{"debug": true}`: `{"debug":true}`,
		`{"runtimes": {"crun": {"path": "/usr/bin/crun", "runtimeArgs": ["--debug"]}}, "dns": ["192.0.2.1"]}`: `{"dns":["192.0.2.1"],"runtimes":{"crun":{"path":"/usr/bin/crun","runtimeArgs":["--debug"]}}}`,
	} {
		c := testDaemon(t, before)
		for range 2 { // again does nothing
			if err := c.AddRuntime("/usr/local/bin/godwit-runc"); err != nil {
				t.Fatal(err)
			}
		}
		if text := compact(t, c); !strings.Contains(text, `"godwit":{"path":"/usr/local/bin/godwit-runc"}`) {
			t.Errorf("%s becomes %s", before, text)
		}
		if err := c.RemoveRuntime(t.Context()); err != nil {
			t.Fatal(err)
		}
		if text := compact(t, c); text != after {
			t.Errorf("%s becomes %s, want %s", before, text, after)
		}
	}
}

// compact is the file without its spaces; "" if there is none.
func compact(t *testing.T, c DaemonConfig) string {
	t.Helper()
	data, err := os.ReadFile(c.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(data)), "")
}

// TestDaemonConfigBroken: a file that cannot be read is left as it is.
func TestDaemonConfigBroken(t *testing.T) {
	for _, content := range []string{"{", `{"runtimes": []}`, "[]"} {
		c := testDaemon(t, content)
		if err := c.AddRuntime("/x"); err == nil || compact(t, c) != strings.Join(strings.Fields(content), "") {
			t.Errorf("%s: %v, now %s", content, err, compact(t, c))
		}
	}
}
