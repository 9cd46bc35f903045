package image

import (
	"archive/tar"
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// imageConfig is an image's configuration (OCI image specification, config.md).
type imageConfig struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       config    `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// manifest is the element of manifest.json in an archive of docker save.
type manifest struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// writeArchive writes an image as docker save does.
func writeArchive(out io.Writer, name string, run config, layers []layer) error {
	buffered := bufio.NewWriterSize(out, 256<<10)
	archive := tar.NewWriter(buffered)
	image := imageConfig{Created: madeAt(), Architecture: runtime.GOARCH, OS: "linux", Config: run,
		RootFS: rootFS{Type: "layers"}}
	list := manifest{Config: "config.json", RepoTags: []string{"localhost/" + name + ":latest"}}
	for _, l := range layers {
		file := strings.TrimPrefix(l.DiffID, "sha256:") + ".tar"
		image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, l.DiffID)
		list.Layers = append(list.Layers, file)
		if err := addFile(archive, file, l.path); err != nil {
			return err
		}
	}
	if err := addJSON(archive, list.Config, image); err != nil {
		return err
	}
	if err := addJSON(archive, "manifest.json", []manifest{list}); err != nil {
		return err
	}
	return errors.Join(archive.Close(), buffered.Flush())
}

func addFile(archive *tar.Writer, name, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("a cached layer: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644,
		Size: info.Size(), ModTime: madeAt()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}

func addJSON(archive *tar.Writer, name string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644,
		Size: int64(len(raw)), ModTime: madeAt()}); err != nil {
		return err
	}
	_, err = archive.Write(raw)
	return err
}
