package main

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

func TestParseVolumes(t *testing.T) {
	for text, want := range map[string]*api.Volume{
		"data:/data":          {Name: "data", Path: "/data"},
		"data:/data:ro":       {Name: "data", Path: "/data", ReadOnly: true},
		"/srv/www/:/www:rw":   {Kind: "bind", Source: "/srv/www", Path: "/www"},
		"/srv/../www:/www:ro": {Kind: "bind", Source: "/www", Path: "/www", ReadOnly: true},
	} {
		if got, err := parseVolume(text); err != nil || !proto.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]*api.Volume{
		"/cache":          {Kind: "tmpfs", Path: "/cache"},
		"/cache:size=64m": {Kind: "tmpfs", Path: "/cache", SizeBytes: 64 << 20},
	} {
		if got, err := parseTmpfs(text); err != nil || !proto.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "data", "a:b:c", "a:/b:ro:x", "./www:/www", "../www:/www"} {
		if got, err := parseVolume(bad); err == nil {
			t.Errorf("volume %q: %v", bad, got)
		}
	}
	for _, bad := range []string{"/x:", "/x:mode=1", "/x:size=", "/x:size=0", "/x:size=y"} {
		if got, err := parseTmpfs(bad); err == nil {
			t.Errorf("tmpfs %q: %v", bad, got)
		}
	}
}

func TestPrintVolumes(t *testing.T) {
	var out bytes.Buffer
	printVolumes(&out, []migration.VolumeMoved{
		{Volume: "data", Path: "/data", Way: migration.VolumeMove, Bytes: 2048, Files: 3},
		{Volume: "/www", Path: "/www", Source: "/srv", Way: migration.VolumeShared,
			Why: "both nodes mount it"},
		{Volume: "/tmp", Path: "/tmp", Way: migration.VolumeSkip},
	})
	for _, want := range []string{"data at /data: moves, 2.0 KiB in 3 files",
		"/srv at /www: shared\n    both", "/tmp: skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing of %q in:\n%s", want, out.String())
		}
	}
}
