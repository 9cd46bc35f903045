package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/lab/labtest"
)

// image is the name of the tests' image.
const image = "localhost/e2e:latest"

// buildAll builds the programs and the image. It builds programs from the current sources, so that no old
// binary is tested by accident; Go's build cache makes that fast. GODWIT_E2E_PROGRAM names a program to
// test instead.
func buildAll(ctx context.Context, directory string) error {
	program := os.Getenv("GODWIT_E2E_PROGRAM")
	if program == "" {
		program = filepath.Join(directory, "godwit")
		if err := labtest.GoBuild(ctx, program, labtest.Program); err != nil {
			return err
		}
	} else if err := os.Symlink(program, filepath.Join(directory, "godwit")); err != nil {
		return err
	}
	if err := labtest.GoBuild(ctx, filepath.Join(directory, "godwit-lab"), labtest.Helper); err != nil {
		return err
	}
	for _, name := range []string{"listen", "serve"} {
		if err := labtest.GoBuild(ctx, filepath.Join(directory, name), "./workloads/"+name); err != nil {
			return err
		}
	}
	if err := labtest.GoBuild(ctx, filepath.Join(directory, "chaos"),
		"../../internal/memory/pager/testdata/chaos"); err != nil {
		return err
	}
	if err := buildWorkloads(ctx, filepath.Join(directory, "state")); err != nil {
		return err
	}
	return buildImage(directory)
}

func buildWorkloads(ctx context.Context, to string) error {
	sources, err := filepath.Glob("workloads/*.c")
	if err != nil {
		return err
	}
	if len(sources) == 0 {
		return errors.New("no workloads: the tests must run in their own directory")
	}
	args := append([]string{"-O1", "-std=gnu17", "-Wall", "-Wextra", "-static", "-pthread", "-o", to},
		sources...)
	if out, err := exec.CommandContext(ctx, "gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("compile the workloads (needs gcc and libc6-dev): %w: %s", err, out)
	}
	return nil
}

// entry is a file of an image layer.
type entry struct {
	name    string
	mode    int64 // with fs.ModeDir or fs.ModeSymlink in the type
	kind    byte
	content []byte
	link    string
}

func directory(name string, mode int64) entry {
	return entry{name: name, mode: mode, kind: tar.TypeDir}
}

func file(name, content string) entry {
	return entry{name: name, mode: 0o644, kind: tar.TypeReg, content: []byte(content)}
}

// buildImage writes an image with busybox and the workloads in docker save's format, in two layers.
func buildImage(dir string) error {
	base, err := baseLayer(dir)
	if err != nil {
		return err
	}
	archive, err := imageArchive(image, base, upperLayer())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "image.tar"), archive, 0o600)
}

// imageArchive returns an image in docker save's format.
func imageArchive(name string, layers ...[]entry) ([]byte, error) {
	var blobs []entry
	var diffIDs, paths []string
	for i, layer := range layers {
		blob, err := layerTar(layer)
		if err != nil {
			return nil, err
		}
		digest := sha256.Sum256(blob)
		diffIDs, paths = append(diffIDs, "sha256:"+hex.EncodeToString(digest[:])),
			append(paths, fmt.Sprintf("%d/layer.tar", i))
		blobs = append(blobs, entry{name: paths[i], mode: 0o644, kind: tar.TypeReg, content: blob})
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": epoch(),
		"config": map[string]any{"Env": []string{"PATH=/bin", "FROM_IMAGE=yes"}, "Cmd": []string{"/bin/sh"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
	if err != nil {
		return nil, err
	}
	manifest,
		err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name},
		"Layers": paths}})
	if err != nil {
		return nil, err
	}
	return layerTar(append(blobs, entry{name: "config.json", mode: 0o644, kind: tar.TypeReg, content: config},
		entry{name: "manifest.json", mode: 0o644, kind: tar.TypeReg, content: manifest}))
}

// epoch is the time of all files of the image.
func epoch() time.Time { return time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC) }

// baseLayer contains programs.
func baseLayer(dir string) ([]entry, error) {
	var entries []entry
	for _, name := range []string{"bin", "dev", "etc", "proc", "root", "run", "sys", "usr", "usr/share",
		"var"} {
		entries = append(entries, directory(name, 0o755))
	}
	entries = append(entries, directory("tmp", 0o1777))
	for name, from := range map[string]string{
		"busybox": "/bin/busybox", "state": filepath.Join(dir, "state"),
		"listen": filepath.Join(dir, "listen"),
		"serve":  filepath.Join(dir, "serve"), "chaos": filepath.Join(dir, "chaos"),
	} {
		content, err := os.ReadFile(from)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w (busybox-static is needed: make setup)", err)
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: "bin/" + name, mode: 0o755, kind: tar.TypeReg,
			content: content})
	}
	for _, name := range strings.Fields("sh cat echo ls kill sleep id ps readlink grep touch rm mkdir stat") {
		entries = append(entries, entry{name: "bin/" + name, mode: 0o777, kind: tar.TypeSymlink,
			link: "busybox"})
	}
	return append(entries, file("etc/passwd",
		"root:x:0:0:root:/root:/bin/sh\nann:x:1001:1002::/tmp:/bin/sh\n"),
		file("etc/group", "root:x:0:\nann:x:1002:\nstaff:x:50:ann\n")), nil
}

// upperLayer contains files that workloads change or delete.
func upperLayer() []entry {
	entries := []entry{
		file("etc/layer-file", "layer-file\n"), file("etc/deleted-from-layer", "x"),
		directory("usr/share/layered", 0o755),
		directory("usr/share/layered/replaced", 0o755), directory("usr/share/layered/gone-directory", 0o755),
	}
	for _, name := range []string{
		"replaced/old", "moved", "appended", "mode", "becomes-directory", "gone-directory/file", "untouched",
	} {
		entries = append(entries, file(path.Join("usr/share/layered", name), "of the image: "+name+"\n"))
	}
	return entries
}

func layerTar(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, e := range entries {
		header := &tar.Header{
			Name: e.name, Mode: e.mode, Typeflag: e.kind, Linkname: e.link, Size: int64(len(e.content)),
			ModTime: epoch(),
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(e.content); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), archive.Close()
}
