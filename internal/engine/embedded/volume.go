package embedded

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// Bounds of volumes. The path of a bind or a tmpfs is the name of its tree.
const (
	maxVolumes    = 64
	maxVolumePath = 255
	maxSourcePath = 4095 // PATH_MAX
	maxTmpfs      = 1 << 50
)

func validateVolumes(d engine.Definition) error {
	if len(d.Volumes) > maxVolumes {
		return fmt.Errorf("%d volumes: at most %d", len(d.Volumes), maxVolumes)
	}
	for i, v := range d.Volumes {
		if !cleanPath(v.Path, maxVolumePath) {
			return fmt.Errorf("path %.80q of a volume: must be absolute, clean, not / and at most %d bytes",
				v.Path, maxVolumePath)
		}
		if err := validateVolume(v); err != nil {
			return err
		}
		for _, other := range d.Volumes[:i] {
			if v.Path == other.Path || v.Overlaps(other) {
				return fmt.Errorf("%.80s at %.80s and %.80s at %.80s: the same twice", v, v.Path, other,
					other.Path)
			}
		}
	}
	return nil
}

func validateVolume(v engine.Volume) error {
	switch {
	case v.Sort() == engine.Named && v.Source == "" && v.SizeBytes == 0:
		if !namePattern.MatchString(v.Name) {
			return fmt.Errorf("volume name %.80q: must begin with a letter or digit and have at most 63 "+
				"of a-z A-Z 0-9 _ . -", v.Name)
		}
	case v.Sort() == engine.Bind && v.Name == "" && v.SizeBytes == 0:
		if !cleanPath(v.Source, maxSourcePath) {
			return fmt.Errorf("host directory %.80q: must be an absolute path, clean and not /", v.Source)
		}
	case v.Sort() == engine.Tmpfs && v.Name == "" && v.Source == "" && !v.ReadOnly:
		if v.SizeBytes < 0 || v.SizeBytes > maxTmpfs {
			return fmt.Errorf("tmpfs %.80s of %d bytes: must be from 1 to %d, or 0 for half of the memory",
				v.Path, v.SizeBytes, int64(maxTmpfs))
		}
	default:
		return fmt.Errorf("volume at %.80q of kind %.20q has settings that this kind of volume cannot have",
			v.Path, v.Kind)
	}
	return nil
}

func cleanPath(p string, limit int) bool {
	return path.IsAbs(p) && path.Clean(p) == p && p != "/" && len(p) <= limit && !strings.ContainsRune(p, 0)
}

// treeKind returns the kind of a volume's tree.
func treeKind(v engine.Volume) files.TreeKind {
	if v.Sort() == engine.Tmpfs {
		return files.Memory
	}
	return files.VolumeOf
}

// volumePath returns the path of the content of a container's volume number i.
func (c container) volumePath(i int, v engine.Volume) string {
	switch v.Sort() {
	case engine.Bind:
		return v.Source
	case engine.Tmpfs:
		return c.tmpfs(i)
	default:
		return c.paths.volume(v.Name)
	}
}

// removeVolume removes the directory of a volume. If something is mounted there, the empty directory stays.
func removeVolume(path string) error {
	err := files.RemoveTree(path)
	if errors.Is(err, unix.EBUSY) {
		if entries, listed := os.ReadDir(path); listed == nil && len(entries) == 0 {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("remove volume: %w", err)
	}
	return nil
}
