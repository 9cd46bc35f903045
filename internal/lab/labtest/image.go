package labtest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// WriteImage makes an archive of an image that has a program in its root directory, and some empty
// directories.
func WriteImage(path, ref, program string, directories ...string) error {
	layer, err := layerOf(program, directories)
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	built, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Cmd: []string{"/" + filepath.Base(program)}},
	})
	if err == nil {
		built, err = mutate.AppendLayers(built, static.NewLayer(layer, types.DockerUncompressedLayer))
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, built)
}

func layerOf(program string, directories []string) ([]byte, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var files bytes.Buffer
	archive := tar.NewWriter(&files)
	for _, directory := range directories {
		header := tar.Header{Name: directory + "/", Typeflag: tar.TypeDir, Mode: 0o755}
		if err := archive.WriteHeader(&header); err != nil {
			return nil, err
		}
	}
	header := tar.Header{Name: filepath.Base(program), Typeflag: tar.TypeReg, Mode: 0o755}
	header.Size = int64(len(content))
	if err := archive.WriteHeader(&header); err != nil {
		return nil, err
	}
	if _, err := archive.Write(content); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return files.Bytes(), nil
}
