package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Build makes the image of this name, unless it exists, and returns its path: an archive in docker save's
// format, in cacheDir. The image's name in it is localhost/NAME:latest. Several programs may build at the
// same time.
func Build(ctx context.Context, name, cacheDir string) (string, error) {
	recipe, err := find(name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(cacheDir, fmt.Sprintf("%s-%s.tar", name, key(recipe.Layers, recipe.Config)))
	if exists(path) {
		return path, nil
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return "", fmt.Errorf("lab image %s: %w", name, err)
	}
	unlock, err := lock(ctx, filepath.Join(cacheDir, "lock"))
	if err != nil {
		return "", fmt.Errorf("lab image %s: %w", name, err)
	}
	defer unlock()
	if exists(path) {
		return path, nil
	}
	b := builder{cache: cacheDir}
	if err := b.image(ctx, recipe, name, path); err != nil {
		return "", fmt.Errorf("lab image %s: %w", name, err)
	}
	return path, nil
}

func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// lock waits for the cache. The wait cannot be interrupted, so it is abandoned, not ended, with the
// context.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	locked := make(chan error, 1)
	go func() { locked <- flock(int(file.Fd())) }()
	select {
	case err = <-locked:
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		return func() { _ = file.Close() }, nil
	case <-ctx.Done():
		go func() {
			_ = errors.Join(<-locked, file.Close()) // closing releases a lock that came too late
		}()
		return nil, ctx.Err()
	}
}

func flock(fd int) error {
	for {
		err := unix.Flock(fd, unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// builder makes layers and images in a cache directory that it has locked.
type builder struct {
	cache string
	apt   *apt // created for the first layer that is not cached
}

func (b *builder) image(ctx context.Context, recipe recipe, name, path string) error {
	defer func() {
		if b.apt != nil {
			b.apt.close()
		}
	}()
	var (
		layers    []layer
		installed []installedPackage
	)
	for i := range recipe.Layers {
		made, err := b.layer(ctx, recipe.Layers[:i+1], installed)
		if err != nil {
			return fmt.Errorf("layer %s: %w", recipe.Layers[i].Name, err)
		}
		layers = append(layers, made)
		installed = append(installed, made.Packages...)
	}
	return replace(path, func(file *os.File) error { return writeArchive(file, name, recipe.Config, layers) })
}

// layerBase returns the path of the last of these layers in a cache.
func layerBase(cache string, recipes []layerRecipe) string {
	return filepath.Join(cache, fmt.Sprintf("layer-%s-%s", recipes[len(recipes)-1].Name, key(recipes, nil)))
}

// layer makes the last of these layers unless it is cached.
func (b *builder) layer(ctx context.Context, recipes []layerRecipe, installed []installedPackage) (layer,
	error) {
	recipe := recipes[len(recipes)-1]
	base := layerBase(b.cache, recipes)
	made, err := readLayer(base)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return made, err
	}
	if b.apt == nil {
		if b.apt, err = newApt(); err != nil {
			return layer{}, err
		}
	}
	debs, err := b.apt.download(ctx, recipe.Packages, installed)
	if err != nil {
		return layer{}, err
	}
	more, err := b.prepare(ctx, recipe)
	defer more.close()
	if err != nil {
		return layer{}, err
	}
	return makeLayer(ctx, base, recipe, debs, more)
}

// replace writes a file atomically.
func replace(path string, write func(*os.File) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	err = write(file)
	if err == nil {
		err = file.Chmod(0o644)
	}
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
