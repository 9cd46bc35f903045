package podman

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// fakePodman replaces Podman by a script.
func fakePodman(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "podman"), []byte("#!/bin/sh\n"+script+"\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestHookDirectories reads the help of Podman 4.3 and of 5.4.
func TestHookDirectories(t *testing.T) {
	const flag = "Options:\n  -h, --help\n      --hooks-dir strings           Set the OCI hooks directory " +
		"path (may be set multiple times)"
	for help, want := range map[string][]string{
		flag + "\n      --identity string   path (default [/x])\n": nil,
		flag +
			" (default [/usr/share/containers/oci/hooks.d])\n": {"/usr/share/containers/oci/hooks.d"},
		strings.Replace(flag, "strings    ", "stringArray", 1) + " (default [/a,\"/b,c\"])\n": {"/a", "/b,c"},
		flag + " (default [/a,\"/b,c\"])\n":                                                   {"/a", "/b,c"},
	} {
		if got, err := hookDirectories(help); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", help, got, err, want)
		}
	}
	if _, err := hookDirectories("Options:\n"); err == nil {
		t.Error("no flag, and guards are relied upon")
	}
}

// TestGuardObstacles checks that containers do not move with a Podman that would not obey guards, or for
// which no guard can be made.
func TestGuardObstacles(t *testing.T) {
	hooks := filepath.Join(t.TempDir(), "oci", "hooks.d")
	readOnly := "/proc/sys/kernel/hooks.d" // not even root can make files there
	for what, c := range map[string]struct {
		told, directory, want string
	}{
		"default":      {"(default [" + hooks + "])", hooks, ""},
		"empty":        {"", hooks, ""},
		"listed":       {"(default [/etc/hooks," + hooks + "/])", hooks, ""},
		"elsewhere":    {"(default [/etc/hooks])", hooks, "add " + hooks + " to hooks_dir"},
		"not writable": {"", readOnly, "writable directory"},
	} {
		fakePodman(t, `echo '      --hooks-dir strings  Set it `+c.told+`'`)
		found := guardObstacles(t.Context(), c.directory)
		if c.want == "" && len(found) == 0 || c.want != "" && len(found) == 1 &&
			strings.Contains(found[0].Remedy, c.want) {
			continue
		}
		t.Errorf("%s: %+v", what, found)
	}
	fakePodman(t, "exit 1")
	if found := guardObstacles(t.Context(), hooks); len(found) != 1 {
		t.Errorf("Podman says nothing: %+v", found)
	}
}

// TestCreateIsGuarded checks that a container is guarded before it exists, by its annotation, and by its ID
// once that is known.
func TestCreateIsGuarded(t *testing.T) {
	engineID, hooks, seen := strings.Repeat("3c", 32), t.TempDir(), filepath.Join(t.TempDir(), "seen")
	s := newStorage(t)
	low, _ := s.layer(t, idOf("a"), "", "low")
	id := s.image(t, idOf("a"), "1")
	d := valid(t, func(d *engine.Definition, x *extra) {
		d.Volumes, x.Mounts, d.ImageID, d.Layers = nil, nil, id, []string{low}
	})
	fakePodman(t, `case "$*" in *" create "*) cat `+hooks+`/godwit-arrival-*; echo "$*";; esac >>`+seen+
		`; echo `+engineID)
	a := s.podman
	a.guards = guards{hooks}
	if got, err := a.Create(t.Context(), d, "io.godwit.id", testID); got != engineID || err != nil {
		t.Fatal(got, err)
	}
	data, err := os.ReadFile(seen)
	for _, want := range []string{`"^io\\.godwit\\.arrival$": "^` + testID + `$"`, "createRuntime",
		"--annotation=io.godwit.arrival=" + testID} {
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%v, there is no %s in %s", err, want, data)
		}
	}
	left, err := os.ReadDir(hooks)
	if err != nil || len(left) != 1 || left[0].Name() != "godwit-"+engineID+".json" {
		t.Errorf("%v, %v", left, err)
	}
	if err := a.guardArrival(testID); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{engineID, testID} {
		if err := a.Gone(id); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(hooks); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if found := obstacles(config{Annotations: map[string]string{arrivalAnnotation: testID}},
		host{NetworkMode: "none"}, nil); len(found) > 0 {
		t.Errorf("it could not move on: %+v", found)
	}
}
