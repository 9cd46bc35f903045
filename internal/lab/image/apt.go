package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// installedPackage is a package that a lower layer has.
type installedPackage struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// deb is a package file.
type deb struct {
	installedPackage
	path string
}

// installers are packages on which others depend for their maintainer scripts or services, which images do
// not run. apt is told that they are installed.
func installers() []string {
	return []string{
		"adduser", "debconf", "dpkg", "init-system-helpers", "iproute2",
		"lsb-base", "passwd", "perl", "perl-base", "sysvinit-utils", "tar", "ucf", "usrmerge",
		"usr-is-merged",
	}
}

// apt fetches packages and their dependencies, with its own state: the machine's installed packages and
// caches play no part and do not change. It uses the machine's sources, keys and, if they are good enough,
// package lists.
type apt struct {
	dir     string
	private bool // it has its own, freshly fetched package lists
}

func newApt() (*apt, error) {
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("lab images are made from Debian packages, which needs %s (Debian, "+
				"Ubuntu): %w; elsewhere use \"godwit image pull\"", program, err)
		}
	}
	dir, err := os.MkdirTemp("", "godwit-apt-")
	if err != nil {
		return nil, err
	}
	a := &apt{dir: dir}
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *apt) close() { _ = os.RemoveAll(a.dir) }

// download fetches packages and their dependencies except those that are installed. The machine's package
// lists may be missing, or so old that the mirror no longer has the listed files: then apt fetches new
// lists, once.
func (a *apt) download(ctx context.Context, packages []string, installed []installedPackage) ([]deb, error) {
	if err := a.writeStatus(installed); err != nil {
		return nil, err
	}
	args := append([]string{"install", "--download-only", "--yes", "--quiet=2", "--"}, packages...)
	err := a.run(ctx, args...)
	if err != nil && !a.private && ctx.Err() == nil {
		a.private = true
		if updateErr := a.run(ctx, "update", "--quiet=2"); updateErr != nil {
			return nil, fmt.Errorf("fetch packages: %w; fetch package lists: %w", err, updateErr)
		}
		err = a.run(ctx, args...)
	}
	if err != nil {
		return nil, fmt.Errorf("fetch packages: %w", err)
	}
	return a.collect()
}

// writeStatus pretends that packages are installed, in the format of /var/lib/dpkg/status.
func (a *apt) writeStatus(installed []installedPackage) error {
	var status bytes.Buffer
	for _, name := range installers() {
		installed = append(slices.Clip(installed), installedPackage{Name: name, Version: "99:9999"})
	}
	for _, p := range installed {
		fmt.Fprintf(&status, "Package: %s\nStatus: install ok installed\nVersion: %s\nArchitecture: "+
			"all\nMulti-Arch: foreign\n"+
			"Maintainer: none\nDescription: none\n\n", p.Name, p.Version)
	}
	return os.WriteFile(filepath.Join(a.dir, "status"), status.Bytes(), 0o644)
}

// run runs apt-get. The clock of a machine may be past the expiry date of a mirror's lists; the archive's
// key still signs the packages.
func (a *apt) run(ctx context.Context, args ...string) error {
	options := []string{
		"Dir::State::status=" + filepath.Join(a.dir, "status"),
		"Dir::Cache=" + filepath.Join(a.dir, "cache"),
		"Debug::NoLocking=true",
		"APT::Install-Recommends=false",
		"APT::Sandbox::User=root",
		"Acquire::Check-Valid-Until=false",
		"Acquire::Languages=none",
		"Acquire::Retries=2",
	}
	if a.private {
		options = append(options, "Dir::State::lists="+filepath.Join(a.dir, "lists"))
	}
	var full []string
	for _, option := range options {
		full = append(full, "-o", option)
	}
	cmd := exec.CommandContext(ctx, "apt-get", append(full, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLines(output))
	}
	return nil
}

func lastLines(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

// collect moves the fetched packages out of apt's cache, sorted by name.
func (a *apt) collect() ([]deb, error) {
	archives := filepath.Join(a.dir, "cache", "archives")
	found, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return nil, err
	}
	taken, err := os.MkdirTemp(a.dir, "debs-")
	if err != nil {
		return nil, err
	}
	var debs []deb
	for _, path := range found {
		d := deb{path: filepath.Join(taken, filepath.Base(path))}
		if d.installedPackage, err = parseDebName(filepath.Base(path)); err != nil {
			return nil, err
		}
		if err := os.Rename(path, d.path); err != nil {
			return nil, err
		}
		debs = append(debs, d)
	}
	slices.SortFunc(debs, func(x, y deb) int { return strings.Compare(x.Name, y.Name) })
	return debs, nil
}

// parseDebName parses NAME_VERSION_ARCHITECTURE.deb, apt's file names: the colon of an epoch is escaped.
func parseDebName(file string) (installedPackage, error) {
	parts := strings.Split(strings.TrimSuffix(file, ".deb"), "_")
	if len(parts) != 3 {
		return installedPackage{}, fmt.Errorf("%q is not the name of a package file", file)
	}
	version, err := url.PathUnescape(parts[1])
	if err != nil {
		return installedPackage{}, fmt.Errorf("%q is not the name of a package file: %w", file, err)
	}
	return installedPackage{Name: parts[0], Version: version}, nil
}
