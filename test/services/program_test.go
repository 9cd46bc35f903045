package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// program is a program that no package of Debian has.
type program interface {
	build(ctx context.Context, to string) error
}

// goSource is a program of this module, by its source directory.
type goSource string

func (source goSource) build(ctx context.Context, to string) error {
	return run(ctx, "", []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-o", to,
		"./"+string(source))
}

// goModule is a program of a published module, PATH@VERSION, built in the module's own tree, so that the
// module's replacements apply. It is built once.
type goModule struct{ module, directory string }

func (m goModule) build(ctx context.Context, to string) error {
	cache, err := cacheDirectory()
	if err != nil {
		return err
	}
	built := filepath.Join(cache, "program-"+digest(m.module, m.directory))
	if _, err := os.Stat(built); err == nil {
		return os.Link(built, to)
	}
	tree, err := m.tree(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	err = run(ctx, tree, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w", "-o", built, "./"+m.directory)
	if err != nil {
		return err
	}
	return os.Link(built, to)
}

// tree copies the module out of the module cache, which is read-only.
func (m goModule) tree(ctx context.Context) (string, error) {
	source, err := m.download(ctx)
	if err != nil {
		return "", err
	}
	tree, err := os.MkdirTemp("", "godwit-services-")
	if err != nil {
		return "", err
	}
	return tree, os.CopyFS(tree, os.DirFS(source))
}

func (m goModule) download(ctx context.Context) (directory string, err error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", m.module)
	cmd.Dir = os.TempDir() // outside of any module, whose sums it would change
	out, err := cmd.Output()
	var downloaded struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &downloaded); jsonErr != nil || err != nil {
		return "", fmt.Errorf("download %s: %w: %s", m.module, errors.Join(err, jsonErr), downloaded.Error)
	}
	return downloaded.Dir, nil
}

// moduleFiles is a directory of a published module.
type moduleFiles struct{ module, directory string }

func (m moduleFiles) build(ctx context.Context, to string) error {
	downloaded, err := goModule{module: m.module}.download(ctx)
	if err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(filepath.Join(downloaded, m.directory)))
}

// source is a file below sources.
type source string

func (name source) build(_ context.Context, to string) error {
	content, err := os.ReadFile(filepath.Join("sources", string(name)))
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

// crate is a Rust program below sources, by its directory. It is statically linked: the machine's C library
// may be newer than the image's.
type crate string

func (name crate) build(ctx context.Context, to string) error {
	cache, err := cacheDirectory()
	if err != nil {
		return err
	}
	target := filepath.Join(cache, "cargo")
	environment := []string{"CARGO_TARGET_DIR=" + target, "RUSTFLAGS=-Ctarget-feature=+crt-static"}
	tuple, err := exec.CommandContext(ctx, "rustc", "--print", "host-tuple").Output()
	if err != nil {
		return err
	}
	machine := strings.TrimSpace(string(tuple)) // named, so that macros, which run here, are not linked so
	if err := run(ctx, filepath.Join("sources", string(name)), environment, "cargo", "build", "--release",
		"--locked", "--target", machine); err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(target, machine, "release", filepath.Base(to)))
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// run runs a program of this machine in a directory.
func run(ctx context.Context, directory string, environment []string, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env = directory, append(os.Environ(), environment...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command[0], err, lastOf(string(out)))
	}
	return nil
}
