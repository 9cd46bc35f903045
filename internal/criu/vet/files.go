package vet

import (
	"errors"
	"fmt"
	"strings"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	ghost_file "github.com/checkpoint-restore/go-criu/v7/crit/images/ghost-file"
	"golang.org/x/sys/unix"
)

// A type of socket that needs a capability.
const sockRaw = 3 // SOCK_RAW

// files checks the open files of all processes.
func (v *vetted) files() error {
	return v.dir.each("files.img", magicFiles, func(data []byte) error {
		var f fdinfo.FileEntry
		if err := decode(data, &f); err != nil {
			return err
		}
		if err := v.file(&f); err != nil {
			return fmt.Errorf("open file %d: %w", f.GetId(), err)
		}
		return nil
	})
}

// file checks an open file. The image names the kind of file separately from the parts, so file checks
// every part that is present.
func (v *vetted) file(f *fdinfo.FileEntry) error {
	if f.Ext != nil {
		return errors.New("it is left to a plugin of CRIU, which this node lacks")
	}
	if f.Reg != nil {
		if err := v.named(f.Reg.GetName(), f.Reg.GetMntId()); err != nil {
			return err
		}
	}
	if f.Nsf != nil {
		if _, own := v.known[f.Nsf.GetNsId()]; !own {
			return fmt.Errorf("it is a namespace (%d) of no process of the container",
				f.Nsf.GetNsId())
		}
	}
	if f.Bpf != nil {
		if err := v.needs("a map of BPF", "SYS_ADMIN", "BPF"); err != nil {
			return err
		}
	}
	return v.socket(f)
}

func (v *vetted) socket(f *fdinfo.FileEntry) error {
	if f.Usk != nil {
		if f.Usk.GetUflags() != 0 {
			return errors.New("its other end is outside of the container")
		}
		if err := v.named(f.Usk.GetNameDir(), f.Usk.GetMntId()); err != nil {
			return err
		}
	}
	if f.Psk != nil {
		if err := v.needs("a packet socket", "NET_RAW"); err != nil {
			return err
		}
	}
	if f.Isk != nil && f.Isk.GetType() == sockRaw {
		return v.needs("a raw socket", "NET_RAW")
	}
	return nil
}

// noMount is the mount of a file whose mount CRIU has not recorded; it is also the default.
const noMount = -1

// named checks a file by its name in a mount of the container.
func (v *vetted) named(name string, mount int32) error {
	if mount != noMount && !v.mounts[uint32(mount)] {
		return fmt.Errorf("%.200q is on mount %d, which is not the container's", name, mount)
	}
	if dots(name) {
		return fmt.Errorf("%.200q does not lead to a file within the container", name)
	}
	return nil
}

// needs refuses something that a process can have only with one of these capabilities.
func (v *vetted) needs(what string, capabilities ...string) error {
	if v.agreed.Capabilities&Capabilities(capabilities) == 0 {
		return fmt.Errorf("%s needs CAP_%s, which the container's definition does not give", what,
			strings.Join(capabilities, " or CAP_"))
	}
	return nil
}

// ghosts checks deleted files: CRIU creates them again.
func (v *vetted) ghosts() error {
	for name := range v.dir.names {
		if !strings.HasPrefix(name, "ghost-file-") {
			continue
		}
		data, err := v.dir.read(name)
		if err != nil {
			return inImage(name, err)
		}
		if err := v.ghost(data); err != nil {
			return inImage(name, err)
		}
	}
	return nil
}

// errEnough ends the reading of entries early.
var errEnough = errors.New("enough")

func (v *vetted) ghost(data []byte) error {
	err := entries(data, magicGhost, func(entry []byte) error {
		var g ghost_file.GhostFileEntry
		if err := decode(entry, &g); err != nil {
			return err
		}
		if kind := g.GetMode() & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
			if err := v.needs("a device that was removed", "MKNOD"); err != nil {
				return err
			}
		}
		return errEnough // the file's contents follow
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}
