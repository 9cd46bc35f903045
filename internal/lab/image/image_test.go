package image

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestUnknownName(t *testing.T) {
	_, err := Build(context.Background(), "../redis", t.TempDir())
	if err == nil || !strings.Contains(err.Error(),
		"blank, broker, busybox, coap, debian, nginx, recogniser, redis, sqlite, system, video") {
		t.Errorf("got %v", err)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := t.TempDir()
	if _, err := Build(ctx, "busybox", dir); err == nil {
		t.Error("a cancelled build succeeded")
	}
	for _, pattern := range []string{"*.tar", "*.json", ".new-*"} {
		if left, _ := filepath.Glob(filepath.Join(dir, pattern)); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

func TestMergedAndUnwanted(t *testing.T) {
	for name, want := range map[string]string{
		"./": ".", "./bin/sh": "usr/bin/sh", "./lib64/ld.so": "usr/lib64/ld.so", "./usr/bin/x": "usr/bin/x",
		"./libexec/x": "libexec/x",
	} {
		if got := merged(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if !unwanted("usr/share/doc/x/copyright") || unwanted("usr/share/nginx/html") {
		t.Error("the wrong files are left out")
	}
}

func TestParseDebName(t *testing.T) {
	got, err := parseDebName("redis-server_5%3a7.0.15-1~deb12u10_amd64.deb")
	if want := (installedPackage{"redis-server", "5:7.0.15-1~deb12u10"}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseDebName("x.deb"); err == nil {
		t.Error("a bad name was accepted")
	}
}

// TestBuild really makes all images, two at a time from two callers.
func TestBuild(t *testing.T) {
	dir := cacheDir
	var group sync.WaitGroup
	for _, name := range slices.Concat(Small(), Small()) {
		group.Go(func() {
			if _, err := Build(context.Background(), name, dir); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	layers, err := filepath.Glob(filepath.Join(dir, "layer-*.json"))
	if err != nil || len(layers) != 7 {
		t.Errorf("%d layers, want 7: two shared ones and one each of redis, nginx, sqlite, system and "+
			"debian (%v)", len(layers), err)
	}
	path, err := Build(context.Background(), "busybox", dir)
	if err != nil {
		t.Fatal(err)
	}
	shell, err := os.ReadFile(path)
	if err != nil || len(shell) > 4<<20 {
		t.Errorf("busybox has %d bytes, %v", len(shell), err)
	}
	path, err = Build(context.Background(), "redis", dir)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() < 1<<20 || info.Size() > 100<<20 {
		t.Errorf("%v, %v", info, err)
	}
}
