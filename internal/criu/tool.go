package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Tool is an installed CRIU.
type Tool struct {
	Path    string
	Version Version
}

// Version of CRIU.
type Version struct{ Major, Minor, Sub int }

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Sub) }

// AtLeast reports whether v is other or newer.
func (v Version) AtLeast(other Version) bool {
	if v.Major != other.Major {
		return v.Major > other.Major
	}
	if v.Minor != other.Minor {
		return v.Minor > other.Minor
	}
	return v.Sub >= other.Sub
}

// Where Find looks for CRIU.
const (
	envCRIU     = "GODWIT_CRIU"
	installPath = "/opt/godwit/bin/criu"
)

// startPatience is how long a CRIU may take to answer after its start. The first call after boot
// probes the kernel.
const startPatience = 20 * time.Second

// Find looks for CRIU in GODWIT_CRIU, at /opt/godwit/bin/criu and in PATH, in this order, and queries its
// version. It never finds the running program itself.
func Find() (Tool, error) {
	path, err := findPath()
	if err != nil {
		return Tool{}, err
	}
	s, err := startSession(path, sessionFiles{})
	if err != nil {
		return Tool{}, err
	}
	defer s.kill()
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	v, err := s.warm(ctx)
	if err != nil {
		return Tool{}, fmt.Errorf("%s: %w", path, errEnded(ctx, err))
	}
	return Tool{Path: path, Version: Version{int(v.GetMajorNumber()), int(v.GetMinorNumber()),
		int(v.GetSublevel())}}, nil
}

// findPath returns the path of the real CRIU.
func findPath() (string, error) {
	candidates := []string{os.Getenv(envCRIU), installPath}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			candidates = append(candidates, filepath.Join(dir, "criu"))
		}
	}
	for _, path := range candidates {
		if path == "" || isSelf(path) {
			continue
		}
		if _, err := exec.LookPath(path); err == nil {
			return path, nil
		}
		if path == os.Getenv(envCRIU) {
			return "", fmt.Errorf("find CRIU: %s=%s is not a program that can be run", envCRIU, path)
		}
	}
	return "", errors.New("find CRIU: not in " + envCRIU + ", " + installPath +
		" or PATH: run godwit setup criu, or install criu 4.2 or newer")
}

// isSelf reports whether path leads to the running program: the proxy is called criu, too.
func isSelf(path string) bool {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	other, err := os.Stat(path)
	return err == nil && os.SameFile(self, other)
}
