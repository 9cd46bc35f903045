package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// download is a file from elsewhere. Its digest is known, so its origin does not matter.
type download struct{ URL, SHA256 string }

// making makes files with Debian's programs that no image needs: a compiler, an encoder.
type making struct {
	Packages  []string
	Files     map[string]string
	Downloads map[string]download `json:",omitempty"`
	Command   []string            // runs in a file system that has only the packages and files
	Outputs   map[string]string   // files that it leaves there, by their paths in the image
}

// prepared are files of this machine, by their paths in a layer.
type prepared struct {
	files map[string]string
	roots []string // directories that belong to it
}

func (p prepared) close() {
	for _, root := range p.roots {
		_ = os.RemoveAll(root)
	}
}

// prepare gets what a layer needs in addition to packages.
func (b *builder) prepare(ctx context.Context, recipe layerRecipe) (prepared, error) {
	p := prepared{files: map[string]string{}}
	if err := b.downloads(ctx, recipe.Downloads, p.files); err != nil {
		return p, err
	}
	for _, m := range recipe.Made {
		root, err := os.MkdirTemp("", "godwit-making-")
		if err != nil {
			return p, err
		}
		p.roots = append(p.roots, root)
		if err := b.carryOut(ctx, m, root); err != nil {
			return p, fmt.Errorf("%s: %w", m.Command[0], err)
		}
		for name, output := range m.Outputs {
			p.files[name] = filepath.Join(root, output)
		}
	}
	return p, nil
}

// downloads finds files in the cache, or fetches them, and notes their paths.
func (b *builder) downloads(ctx context.Context, wanted map[string]download, files map[string]string) error {
	for name, d := range wanted {
		path := filepath.Join(b.cache, "download-"+d.SHA256)
		if !exists(path) {
			if err := replace(path, func(file *os.File) error { return fetch(ctx, d, file) }); err != nil {
				return fmt.Errorf("fetch %s: %w", d.URL, err)
			}
		}
		files[name] = path
	}
	return nil
}

// fetch writes a downloaded file, and compares its digest with the recipe's.
func fetch(ctx context.Context, d download, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.URL, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	const most = 64 << 20
	digest := sha256.New()
	if _, err := io.Copy(io.MultiWriter(out, digest), io.LimitReader(response.Body, most)); err != nil {
		return err
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != d.SHA256 {
		return fmt.Errorf("it is not what it was: SHA-256 %s instead of %s", got, d.SHA256)
	}
	return nil
}

// carryOut runs the command in a separate file system, without a network.
func (b *builder) carryOut(ctx context.Context, m making, root string) error {
	base := []layerRecipe{tools(), libraries()}
	var installed []installedPackage
	for i := range base {
		made, err := b.layer(ctx, base[:i+1], installed)
		if err != nil {
			return err
		}
		installed = append(installed, made.Packages...)
		if err := unpackTar(ctx, made.path, root); err != nil {
			return err
		}
	}
	debs, err := b.apt.download(ctx, m.Packages, installed)
	if err != nil {
		return err
	}
	for _, d := range debs {
		if err := unpackDeb(ctx, d, root); err != nil {
			return err
		}
	}
	if err := b.ownFiles(ctx, m, root); err != nil {
		return err
	}
	return runIn(ctx, root, m.Command)
}

// ownFiles writes the recipe's own files.
func (b *builder) ownFiles(ctx context.Context, m making, root string) error {
	fetched := map[string]string{}
	if err := b.downloads(ctx, m.Downloads, fetched); err != nil {
		return err
	}
	for name, path := range fetched {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil {
			return err
		}
	}
	for name, content := range m.Files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// unpackTar unpacks a layer's archive.
func unpackTar(ctx context.Context, path, root string) error {
	return output(exec.CommandContext(ctx, "tar", "--extract", "--keep-directory-symlink", "--file", path,
		"--directory", root))
}

// unpackDeb unpacks a package with names as they are in a system with merged /usr.
func unpackDeb(ctx context.Context, d deb, root string) error {
	reader, writer := io.Pipe()
	w := &layerWriter{Writer: tar.NewWriter(writer), seen: make(map[string]bool)}
	go func() {
		err := w.deb(ctx, d)
		if err == nil {
			err = w.Close()
		}
		_ = writer.CloseWithError(err)
	}()
	cmd := exec.CommandContext(ctx, "tar", "--extract", "--keep-directory-symlink", "--directory", root)
	cmd.Stdin = reader
	err := output(cmd)
	_ = reader.Close() // so that the writer ends if tar did not read everything
	if err != nil {
		return fmt.Errorf("unpack %s: %w", d.Name, err)
	}
	return nil
}

// runIn runs a command with a directory as its file system.
func runIn(ctx context.Context, root string, command []string) error {
	cmd := exec.CommandContext(ctx, "unshare", append([]string{
		"--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--root=" + root,
		"--mount-proc=/proc", "--",
	}, command...)...)
	cmd.Env = []string{searchPath, "HOME=/tmp", "LC_ALL=C.UTF-8", librarySearchPath()}
	return output(cmd)
}

// output runs a command and returns its output if it fails.
func output(cmd *exec.Cmd) error {
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(slices.Clip(cmd.Args)[:1], " "), err,
			lastLines(said.Bytes()))
	}
	return nil
}
