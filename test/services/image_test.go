package services

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/moby/go-archive"
	"github.com/moby/go-archive/compression"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
)

// layerScript makes file systems of Debian packages.
const layerScript = "../../scripts/debian-layer.sh"

// wrapper is a library of Debian that simulates users for processes that really are all root's. Services
// need it where the agent may not move processes of other users (see asUsers).
const wrapper = "libuid-wrapper"

// image is a service's image: layers as archives in the cache, the lowest first.
type image struct {
	name   string
	layers []string
	lab    string // instead of layers: an archive of a lab image
	users  string // the directory with etc/passwd
}

// reference returns the engines' name for it.
func (i image) reference() string {
	if i.lab != "" {
		return "localhost/" + i.name + ":latest"
	}
	return "localhost/service-" + i.name + ":latest"
}

// makeImage makes the image of a service, or finds it in the cache.
func makeImage(ctx context.Context, s service) (image, error) {
	if s.lab != "" {
		path, err := labimage.Build(ctx, s.lab, filepath.Join(lab.StateDirectory, "images"))
		return image{name: s.lab, lab: path}, err
	}
	cache, err := cacheDirectory()
	if err != nil {
		return image{}, err
	}
	script, err := os.ReadFile(layerScript)
	if err != nil {
		return image{}, err
	}
	base := filepath.Join(cache, "base-"+digest(string(script)))
	if err := makeLayer(ctx, base, "", "base", base+".making", wrapper); err != nil {
		return image{}, err
	}
	made := image{name: s.name, layers: []string{base + ".tar"}}
	own := filepath.Join(cache, s.name+"-"+digest(base, s.setup, strings.Join(s.packages, " ")))
	made.users = own
	if err := makeLayer(ctx, own, s.setup,
		append([]string{"add", base, own + ".making"}, s.packages...)...); err != nil {
		return image{}, err
	}
	made.layers = append(made.layers, own+".tar")
	if len(s.programs) > 0 {
		path, err := programsLayer(ctx, cache, s)
		if err != nil {
			return image{}, err
		}
		made.layers = append(made.layers, path)
	}
	return made, nil
}

// cacheDirectory returns the directory of layers and programs.
func cacheDirectory() (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	directory := filepath.Join(user, "godwit", "services")
	return directory, os.MkdirAll(directory, 0o755)
}

// lock excludes other runs from making the same file.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// makeLayer makes a directory with the script, unless it exists, and packs it.
func makeLayer(ctx context.Context, directory, setup string, args ...string) error {
	name := directory[:strings.LastIndexByte(directory, '-')]
	unlock, err := lock(name + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(directory + ".tar"); err == nil {
		return nil
	}
	making := directory + ".making"
	older, err := filepath.Glob(name + "-????????????*") // of the same name, from older recipes
	if err != nil {
		return err
	}
	for _, path := range older {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, layerScript, args...)
	cmd.Stdin = strings.NewReader(setup)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make %s: %w: %s", filepath.Base(directory), err, lastOf(string(out)))
	}
	if err := os.Rename(making, directory); err != nil {
		return err
	}
	packed, err := archive.TarWithOptions(directory, &archive.TarOptions{
		Compression: compression.None, WhiteoutFormat: archive.OverlayWhiteoutFormat,
	})
	if err != nil {
		return err
	}
	defer packed.Close()
	return writeFile(directory+".tar", packed)
}

// programsLayer builds the programs of a service, and packs them.
func programsLayer(ctx context.Context, cache string, s service) (string, error) {
	directory := filepath.Join(cache, "programs-"+s.name)
	if err := os.RemoveAll(directory); err != nil {
		return "", err
	}
	for path, p := range s.programs {
		to := filepath.Join(directory, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", err
		}
		if err := p.build(ctx, to); err != nil {
			return "", fmt.Errorf("build %s: %w", filepath.Base(path), err)
		}
	}
	packed, err := archive.Tar(directory, compression.None)
	if err != nil {
		return "", err
	}
	defer packed.Close()
	return directory + ".tar", writeFile(directory+".tar", packed)
}

// writeFile writes a file atomically.
func writeFile(path string, content io.Reader) error {
	file, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// save writes the image in docker save's format.
func (i image) save(out io.Writer) error {
	if i.lab != "" {
		return copyFile(out, i.lab)
	}
	w := tar.NewWriter(out)
	var diffIDs, names []string
	for number, path := range i.layers {
		id, err := digestOf(path)
		if err != nil {
			return err
		}
		diffIDs, names = append(diffIDs, "sha256:"+id), append(names, fmt.Sprintf("%d/layer.tar", number))
		if err := addFile(w, names[number], path); err != nil {
			return err
		}
	}
	config := map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "rootfs": map[string]any{"type": "layers",
			"diff_ids": diffIDs},
		"config": map[string]any{
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				"LC_ALL=C.UTF-8"}, "Cmd": []string{"sh"},
		},
	}
	manifest := []map[string]any{{"Config": "config.json", "RepoTags": []string{i.reference()},
		"Layers": names}}
	return errors.Join(addJSON(w, "config.json", config), addJSON(w, "manifest.json", manifest), w.Close())
}

func addFile(w *tar.Writer, name, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644,
		Size: info.Size()}); err != nil {
		return err
	}
	return copyFile(w, path)
}

func copyFile(to io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(to, file)
	return err
}

func addJSON(w *tar.Writer, name string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644,
		Size: int64(len(content))}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

// digestOf returns the digest of a layer.
func digestOf(path string) (string, error) {
	sum := sha256.New()
	err := copyFile(sum, path)
	return hex.EncodeToString(sum.Sum(nil)), err
}

func digest(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:6])
}

// lastOf returns the end of a program's output.
func lastOf(text string) string {
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-2000):]
}
