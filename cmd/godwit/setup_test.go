package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/scripts"
)

// TestSetupScript runs the script that comes with the program. The script must report missing tools before
// it changes anything.
func TestSetupScript(t *testing.T) {
	cmd := newSetupCRIUCommand()
	var said bytes.Buffer
	cmd.SetOut(&said)
	cmd.SetErr(&said)
	cmd.SetContext(t.Context())
	tools := t.TempDir() // all tools that the script needs, except patchelf
	for _, name := range []string{"bash", "dirname", "dpkg", "apt-get", "dpkg-deb", "grep", "mktemp", "rm"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(tools, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", tools)
	prefix := filepath.Join(t.TempDir(), "prefix")
	err := installCRIU(cmd, prefix)
	if err == nil || !strings.Contains(said.String(),
		"patchelf is needed and not installed: apt-get install patchelf") {
		t.Errorf("without patchelf: %v, and it says %q", err, said.String())
	}
	if _, err := os.Stat(prefix); !os.IsNotExist(err) {
		t.Errorf("the prefix was made: %v", err)
	}
}

// TestSetupNamed: the CRIU that the environment names is used anyway, so nothing is installed beside it.
func TestSetupNamed(t *testing.T) {
	t.Setenv("GODWIT_CRIU", "/bin/false")
	cmd := newSetupCRIUCommand()
	var said bytes.Buffer
	cmd.SetOut(&said)
	cmd.SetContext(t.Context())
	err := setupCRIU(cmd, filepath.Join(t.TempDir(), "prefix"), false)
	if err == nil || !strings.Contains(err.Error(), "GODWIT_CRIU names /bin/false") {
		t.Errorf("it ends with %v, and says %q", err, said.String())
	}
}

// TestScriptsAreWhole: every file that the script sources is embedded, too.
func TestScriptsAreWhole(t *testing.T) {
	data, err := scripts.Files.ReadFile(scripts.InstallCRIU)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		_, name, sources := strings.Cut(strings.TrimSpace(line), `source "$(dirname "$0")/`)
		if !sources {
			continue
		}
		if _, err := scripts.Files.ReadFile(strings.TrimSuffix(name, `"`)); err != nil {
			t.Error(err)
		}
	}
}
