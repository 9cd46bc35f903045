package docker

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// TestTakeMounts checks that an anonymous volume is requested by its existing name, however it was
// requested at the source.
func TestTakeMounts(t *testing.T) {
	random := strings.Repeat("0c", 32)
	d := engine.Definition{Volumes: []engine.Volume{
		{Engine: Name, Kind: engine.Named, Name: random, Path: "/data"},
		{Engine: Name, Kind: engine.Named, Name: "logs", Path: "/logs", ReadOnly: true},
		{Kind: engine.Bind, Source: "/srv", Path: "/srv"},
	}}
	wanted := mount.Mount{Type: mount.TypeVolume, Source: random, Target: "/data"}
	ram := mount.Mount{Type: mount.TypeTmpfs, Target: "/ram"}
	named := []string{"logs:/logs/:ro,z", "/srv:/srv"}
	for what, h := range map[string]container.HostConfig{
		"the image's": {Binds: named}, "a bind": {Binds: append([]string{"/data"}, named...)},
		"a mount": {Binds: named, Mounts: []mount.Mount{{Type: mount.TypeVolume, Target: "/data"}}},
	} {
		h.Mounts = append(h.Mounts, ram)
		binds, mounts, err := takeMounts(d, &h)
		if err != nil || !slices.Equal(binds, named) || !slices.Equal(mounts, []mount.Mount{ram, wanted}) {
			t.Errorf("%s: %q, %+v, %v", what, binds, mounts, err)
		}
	}
	for what, h := range map[string]container.HostConfig{
		"another directory": {Binds: append([]string{"/:/host"}, named...)},
		"a directory twice": {Binds: append([]string{"/srv:/srv"}, named...)},
		"writable":          {Binds: []string{"logs:/logs", "/srv:/srv"}},
		"another volume":    {Binds: append([]string{"other:/data"}, named...)},
		"a mount": {Binds: named,
			Mounts: []mount.Mount{{Type: mount.TypeBind, Source: "/etc", Target: "/etc"}}},
		"a mount's type": {Binds: named,
			Mounts: []mount.Mount{{Type: mount.TypeImage, Source: "x", Target: "/x"}}},
		"directory not used": {Binds: named[:1]},
	} {
		if binds, mounts, err := takeMounts(d, &h); err == nil {
			t.Errorf("%s: %q, %+v", what, binds, mounts)
		}
	}
}

func TestSameVolumes(t *testing.T) {
	one, two := engine.Volume{Engine: Name, Name: "one", Path: "/1"},
		engine.Volume{Engine: Name, Kind: engine.Named, Name: "two", Path: "/2"}
	stays := two
	stays.Stays = true
	if !oci.SameVolumes([]engine.Volume{one, two}, []engine.Volume{stays, one}) {
		t.Error("the order counts, or what stays")
	}
	other := two
	other.Name = "three"
	for _, volumes := range [][]engine.Volume{{one}, {one, two, other}, {one, other}} {
		if oci.SameVolumes([]engine.Volume{one, two}, volumes) {
			t.Errorf("%v are the same", volumes)
		}
	}
}

// TestMakerObstacles checks that volumes that are more than a directory move only if they stay.
func TestMakerObstacles(t *testing.T) {
	nfs := volumeMaker{Driver: localDriver, Options: map[string]string{"type": "nfs"}}
	for _, maker := range []volumeMaker{nfs, {Driver: "rexray"}} {
		d := engine.Definition{Volumes: []engine.Volume{{Engine: Name, Name: "data", Path: "/data"}}}
		x := extra{Volumes: map[string]volumeMaker{"data": maker}}
		if len(makerObstacles(d, x)) != 1 {
			t.Errorf("%+v moves", maker)
		}
		d.Volumes[0].Stays = true
		if found := makerObstacles(d, x); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	}
}
