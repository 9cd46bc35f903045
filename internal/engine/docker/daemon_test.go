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
	c := DaemonConfig{Path: filepath.Join(dir, "etc", "daemon.json"), PIDFile: filepath.Join(dir, "pid"),
		Socket: filepath.Join(dir, "socket"), DataDir: filepath.Join(dir, "data")}
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

// TestDaemonConfig checks that removal takes away exactly what setup has added.
func TestDaemonConfig(t *testing.T) {
	for before, after := range map[string]string{
		"": "", "{}": "", `{"debug": true}`: `{"debug":true}`,
		`{"runtimes": {"crun": {"path": "/usr/bin/crun", "runtimeArgs": ["--debug"]}}, "dns": ["192.0.2.1"]}`: `{"dns":["192.0.2.1"],"runtimes":{"crun":{"path":"/usr/bin/crun","runtimeArgs":["--debug"]}}}`,
	} {
		c := testDaemon(t, before)
		for range 2 { // the second call does nothing
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

// compact returns the file without spaces; "" if there is no file.
func compact(t *testing.T, c DaemonConfig) string {
	t.Helper()
	data, err := os.ReadFile(c.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(data)), "")
}

// TestDaemonConfigBroken checks that an unreadable file is left unchanged.
func TestDaemonConfigBroken(t *testing.T) {
	for _, content := range []string{"{", `{"runtimes": []}`, "[]"} {
		c := testDaemon(t, content)
		if err := c.AddRuntime("/x"); err == nil ||
			compact(t, c) != strings.Join(strings.Fields(content), "") {
			t.Errorf("%s: %v, now %s", content, err, compact(t, c))
		}
	}
}

// TestDaemonConfigKept checks that the file's mode stays, and that a link stays a link.
func TestDaemonConfigKept(t *testing.T) {
	c := testDaemon(t, `{"proxies": {}}`)
	file := filepath.Join(t.TempDir(), "docker.json")
	if err := errors.Join(os.Rename(c.Path, file), os.Symlink(file, c.Path),
		os.Chmod(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.AddRuntime("/x"), c.RemoveRuntime(t.Context())); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(file)
	if err != nil || info.Mode() != 0o600 || compact(t, c) != `{"proxies":{}}` {
		t.Errorf("%v, %v, %s", info, err, compact(t, c))
	}
	if link, err := os.Readlink(c.Path); link != file {
		t.Errorf("%s, %v", link, err)
	}
}

// TestDaemonConfigNeeded checks that a stopped Docker may have containers that need the runtime.
func TestDaemonConfigNeeded(t *testing.T) {
	elsewhere := t.TempDir()
	for _, content := range []string{"{}", `{"data-root": "` + elsewhere + `"}`} {
		c := testDaemon(t, content)
		containers := filepath.Join(c.DataDir, "containers")
		if content != "{}" {
			containers = filepath.Join(elsewhere, "containers")
		}
		if err := errors.Join(c.AddRuntime("/x"),
			os.MkdirAll(filepath.Join(containers, "5f"), 0o700)); err != nil {
			t.Fatal(err)
		}
		if err := c.RemoveRuntime(t.Context()); err == nil || !strings.Contains(compact(t, c), "godwit") {
			t.Errorf("%v, now %s", err, compact(t, c))
		}
	}
}
