package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// plugin makes a program from a shell script.
func plugin(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bridge")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPluginEnded checks that stopping a plugin that takes too long also ends what it has started.
func TestPluginEnded(t *testing.T) {
	noted := filepath.Join(t.TempDir(), "pid")
	path := plugin(t, "sleep 1000 &\necho $! >"+noted+".new; mv "+noted+".new "+noted+"\nwait\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		_, err := (&pluginExec{}).ExecPlugin(ctx, path, nil, os.Environ())
		done <- err
	}()
	var child checkpoint.Identity
	await.True(t, "a plugin's child", func() bool {
		if data, err := os.ReadFile(noted); err == nil {
			pid, _ := strconv.Atoi(strings.TrimSpace(string(data))) // without a PID there is no identity
			if child, err = checkpoint.Identify(pid); err != nil {
				t.Fatal(err)
			}
		}
		return child.PID != 0
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "bridge") {
		t.Error(err)
	}
	await.True(t, "the end of what it has started", func() bool { return !child.Alive() })
}

// TestPluginFails checks that a plugin's reason for its failure is reported in any format.
func TestPluginFails(t *testing.T) {
	for script, want := range map[string]string{
		`echo '{"code":7,"msg":"no address is free"}'; echo it >&2; exit 1`: "no address is free",
		`echo it is broken >&2; exit 3`:                                     "exit status 3: it is broken",
		`echo '{"code":7'; exit 1`:                                          `{"code":7`,
	} {
		if _, err := (&pluginExec{}).ExecPlugin(t.Context(), plugin(t, script), nil, nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
	}
	if out, err := (&pluginExec{}).ExecPlugin(t.Context(), plugin(t, `read said; echo "$said $WHAT"`),
		[]byte("it is\n"), []string{"WHAT=well"}); err != nil || string(out) != "it is well\n" {
		t.Errorf("%s: %v", out, err)
	}
}

// TestPluginLeavesOne checks that a plugin succeeds even if something that it has started holds its pipes.
func TestPluginLeavesOne(t *testing.T) {
	out, err := (&pluginExec{}).ExecPlugin(t.Context(), plugin(t, "sleep 3 &\necho well"), nil, os.Environ())
	if err != nil || string(out) != "well\n" {
		t.Errorf("%q, %v", out, err)
	}
}
