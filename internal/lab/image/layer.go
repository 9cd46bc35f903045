package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// layer is a layer's archive in the cache.
type layer struct {
	DiffID   string             `json:"diff_id"`
	Packages []installedPackage `json:"packages"`
	path     string
}

// readLayer finds a layer in the cache. Error: fs.ErrNotExist.
func readLayer(base string) (layer, error) {
	raw, err := os.ReadFile(base + ".json")
	if err != nil {
		return layer{}, err
	}
	found := layer{path: base + ".tar"}
	if err := json.Unmarshal(raw, &found); err != nil {
		return layer{}, fmt.Errorf("%s.json is damaged; remove it: %w", base, err)
	}
	return found, nil
}

// makeLayer puts a layer into the cache: first the archive, then its metadata.
func makeLayer(ctx context.Context, base string, recipe layerRecipe, debs []deb, more prepared) (layer,
	error) {
	made, err := hashLayer(base+".tar",
		func(out io.Writer) error { return writeLayer(ctx, out, recipe, debs, more) })
	if err != nil {
		return layer{}, err
	}
	for _, d := range debs {
		made.Packages = append(made.Packages, d.installedPackage)
	}
	raw, err := json.MarshalIndent(made, "", "  ")
	if err != nil {
		return layer{}, err
	}
	return made, replace(base+".json", func(file *os.File) error {
		_, err := file.Write(append(raw, '\n'))
		return err
	})
}

// hashLayer writes a layer's archive to a file, and computes its digest.
func hashLayer(path string, write func(io.Writer) error) (layer, error) {
	digest := sha256.New()
	err := replace(path, func(file *os.File) error {
		buffered := bufio.NewWriterSize(file, 256<<10)
		err := write(io.MultiWriter(buffered, digest))
		return errors.Join(err, buffered.Flush())
	})
	return layer{path: path, DiffID: "sha256:" + hex.EncodeToString(digest.Sum(nil))}, err
}

// layerWriter writes a layer's archive. Every path is written once; the first wins.
type layerWriter struct {
	*tar.Writer
	seen map[string]bool
	init bool // with files that an init system uses
}

// madeAt is the time stamp of files that are in no package. It is fixed, so that the same recipe gives the
// same layer.
func madeAt() time.Time { return time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC) }

func writeLayer(ctx context.Context, out io.Writer, recipe layerRecipe, debs []deb, more prepared) error {
	w := &layerWriter{Writer: tar.NewWriter(out), seen: make(map[string]bool), init: recipe.Init}
	if err := w.own(recipe); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(more.files)) {
		if err := w.file(name, more.files[name]); err != nil {
			return err
		}
	}
	for _, d := range debs {
		if err := w.deb(ctx, d); err != nil {
			return fmt.Errorf("unpack %s: %w", d.Name, err)
		}
	}
	if recipe.Bulk > 0 {
		if err := w.bulk(0, recipe.Bulk); err != nil {
			return err
		}
	}
	if recipe.Applets {
		if err := w.applets(ctx, debs); err != nil {
			return err
		}
	}
	return w.Close()
}

// own writes the recipe's own files, before the packages, so that they win.
func (w *layerWriter) own(recipe layerRecipe) error {
	for _, name := range slices.Sorted(maps.Keys(recipe.Dirs)) {
		if err := w.entry(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: recipe.Dirs[name],
			ModTime: madeAt()}, nil); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(recipe.Links)) {
		if err := w.link(name, recipe.Links[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(recipe.Files)) {
		content := recipe.Files[name]
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)),
			ModTime: madeAt()}
		if err := w.entry(header, strings.NewReader(content)); err != nil {
			return err
		}
	}
	return nil
}

// file copies a file of this machine.
func (w *layerWriter) file(name, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return w.entry(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: info.Size(),
		ModTime: madeAt()}, file)
}

func (w *layerWriter) link(name, target string) error {
	return w.entry(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777,
		ModTime: madeAt()}, nil)
}

// entry writes one entry, if it is the first of its path. Directories end in a slash, as in tar.
func (w *layerWriter) entry(header *tar.Header, content io.Reader) error {
	if w.seen[header.Name] {
		return nil
	}
	w.seen[header.Name] = true
	if header.Typeflag == tar.TypeDir {
		header.Name += "/"
	}
	header.Uname, header.Gname, header.Format = "", "", tar.FormatPAX
	header.AccessTime, header.ChangeTime, header.PAXRecords = time.Time{}, time.Time{}, nil
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := io.Copy(w.Writer, content)
	return err
}

// deb copies a package's files. dpkg-deb returns them as a tar archive, whatever their compression.
func (w *layerWriter) deb(ctx context.Context, d deb) error {
	return readDeb(ctx, d, func(header *tar.Header, content io.Reader) error {
		if header.Name == "." || unwanted(header.Name) || !w.init && forInit(header.Name) {
			return nil
		}
		return w.entry(header, content)
	})
}

// readDeb calls visit for each entry of a package, with names as they are in a system with merged /usr.
func readDeb(ctx context.Context, d deb, visit func(*tar.Header, io.Reader) error) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", d.path)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = visitAll(tar.NewReader(bufio.NewReaderSize(pipe, 256<<10)), visit)
	if err == nil {
		_, err = io.Copy(io.Discard, pipe)
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may be waiting for us to read
		return errors.Join(err, cmd.Wait())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("dpkg-deb: %w: %s", err, lastLines(complaint.Bytes()))
	}
	return nil
}

func visitAll(archive *tar.Reader, visit func(*tar.Header, io.Reader) error) error {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		header.Name = merged(header.Name)
		if header.Typeflag == tar.TypeLink {
			header.Linkname = merged(header.Linkname)
		}
		if err := visit(header, archive); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

// merged moves paths in /bin, /sbin and /lib* below /usr.
func merged(name string) string {
	name = path.Clean(strings.TrimLeft(strings.TrimPrefix(name, "./"), "/"))
	first, _, _ := strings.Cut(name, "/")
	switch first {
	case "bin", "sbin", "lib", "lib32", "lib64", "libx32":
		return "usr/" + name
	}
	return name
}

// forInit reports whether only an init system uses a file.
func forInit(name string) bool {
	return strings.HasPrefix(name, "usr/lib/systemd") || strings.HasPrefix(name, "usr/lib/tmpfiles.d")
}

// unwanted reports whether a file is documentation, or unused in a container.
func unwanted(name string) bool {
	for _, prefix := range []string{
		"etc/cron.", "etc/default", "etc/init.d", "etc/logrotate.d", "etc/ufw", "usr/lib/init",
		"usr/share/apport", "usr/share/bash-completion", "usr/share/bug", "usr/share/doc", "usr/share/info",
		"usr/share/initramfs-tools",
		"usr/share/lintian", "usr/share/locale", "usr/share/man", "usr/share/vim",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return strings.Contains(name, "/gconv/")
}

// applets asks BusyBox for its programs, and makes a link for each.
func (w *layerWriter) applets(ctx context.Context, debs []deb) error {
	dir, err := os.MkdirTemp("", "godwit-busybox-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "busybox")
	for _, d := range debs {
		if err := extract(ctx, d, "usr/bin/busybox", program); err != nil {
			return err
		}
	}
	list, err := exec.CommandContext(ctx, program, "--list").Output()
	if err != nil {
		return fmt.Errorf("ask busybox for its programs: %w", err)
	}
	for _, name := range strings.Fields(string(list)) {
		if err := w.link("usr/bin/"+path.Base(name), "busybox"); err != nil {
			return err
		}
	}
	return nil
}

func extract(ctx context.Context, d deb, name, to string) error {
	return readDeb(ctx, d, func(header *tar.Header, content io.Reader) error {
		if header.Name != name || header.Typeflag != tar.TypeReg {
			return nil
		}
		raw, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		return os.WriteFile(to, raw, 0o700)
	})
}
