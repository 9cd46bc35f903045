package vet

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
)

// ErrRefused is wrapped by the errors for images that say more than was agreed, or that cannot be read.
var ErrRefused = errors.New("the images from the other node are refused")

// Images compares the images in a directory with what was agreed. An error names the refused process or
// image, and the reason. profile is the AppArmor profile under which all processes must be restored, in
// place of the one that they had; empty: they keep theirs.
func Images(dir string, agreed Agreed) (profile string, err error) {
	d, err := openDir(dir)
	if err != nil {
		return "", fmt.Errorf("read the images of CRIU: %w", err)
	}
	v := &vetted{dir: d, agreed: &agreed}
	if err := v.all(); err != nil {
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if v.renamed.Load() {
		profile = agreed.Profile
	}
	return profile, nil
}

// vetted is a dump under examination.
type vetted struct {
	dir     *imageDir
	agreed  *Agreed
	root    ids            // of CRIU at the source
	first   ids            // of the container's first process
	known   map[uint32]int // namespaces that are the container's own
	mounts  map[uint32]bool
	base    *mnt.MntEntry // of the root file system; nil: there is none
	filters []filter
	renamed atomic.Bool // a process has the engine's default profile under the name of another version
}

// obsolete are images that CRIU would read instead of newer ones. No CRIU that can restore here writes
// them.
var obsolete = []string{
	"reg-files.img", "ext-files.img", "ns-files.img", "unixsk.img", "inetsk.img", "packetsk.img",
	"netlinksk.img", "tunfile.img",
	"creds-", "vmas-", "sigacts-", "rlimit-", "itimers-", "posix-timers-", "signal-s-", "signal-p-",
	"binfmt-misc",
}

func (v *vetted) all() error {
	for name := range v.dir.names {
		if slices.ContainsFunc(obsolete, func(old string) bool { return strings.HasPrefix(name, old) }) {
			return inImage(name, errors.New("there must be none of this kind"))
		}
	}
	if err := v.inventory(); err != nil {
		return err
	}
	tree, err := v.tree()
	if err != nil {
		return err
	}
	if err := errors.Join(v.readFilters(), v.namespaces(tree), v.network()); err != nil {
		return err
	}
	if err := v.allMounts(); err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	group.Go(func() error { return errors.Join(v.files(), v.ghosts(), v.apparmor()) })
	for chunk := range slices.Chunk(tree, chunkOfProcesses) {
		group.Go(func() error {
			for _, p := range chunk {
				if err := v.process(p); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// chunkOfProcesses is how many processes one goroutine checks, one after the other: each thread takes some
// microseconds.
const chunkOfProcesses = 16

func (v *vetted) inventory() error {
	data, err := v.dir.read("inventory.img")
	if err != nil {
		return inImage("inventory.img", err)
	}
	var entry inventory.InventoryEntry
	err = inventoryEntry(data, &entry)
	if err == nil && entry.GetImgVersion() != 2 {
		err = fmt.Errorf("%w: version %d", errFormat, entry.GetImgVersion())
	}
	if err == nil && entry.GetRootIds() == nil {
		err = fmt.Errorf("%w: it does not say in which namespaces CRIU was", errFormat)
	}
	if err != nil {
		return inImage("inventory.img", err)
	}
	v.root = idsOf(entry.GetRootIds())
	return nil
}

// maxProcesses is the limit of a PID namespace.
const maxProcesses = 4 << 20

// tree lists the processes. Exactly one has no parent.
func (v *vetted) tree() ([]*pstree.PstreeEntry, error) {
	const name = "pstree.img"
	var all []*pstree.PstreeEntry
	roots, total := 0, 0
	err := v.dir.each(name, magicPstree, func(entry []byte) error {
		one := &pstree.PstreeEntry{}
		if err := decode(entry, one); err != nil {
			return err
		}
		if one.GetPpid() == 0 {
			roots++
		}
		if total += len(one.GetThreads()); total > maxProcesses {
			return fmt.Errorf("there are more than %d threads", maxProcesses)
		}
		all = append(all, one)
		return nil
	})
	if err == nil && (roots != 1 || all[0].GetPpid() != 0) {
		err = inImage(name, fmt.Errorf("%d of %d processes have no parent, and the first of them must be it",
			roots, len(all)))
	}
	return all, err
}

// number returns the number in a name such as mountpoints-12.img.
func number(name, prefix string) (uint32, bool) {
	rest, has := strings.CutPrefix(name, prefix)
	rest, image := strings.CutSuffix(rest, ".img")
	n, err := strconv.ParseUint(rest, 10, 32)
	return uint32(n), has && image && err == nil
}

// inventoryEntry reads the only image that begins with one magic number instead of two.
func inventoryEntry(data []byte, into proto.Message) error {
	if len(data) < 4 {
		return fmt.Errorf("%w: it has %d bytes", errFormat, len(data))
	}
	count := 0
	common := append([]byte{0x19, 0x43, 0x56, 0x54}, data...)
	err := entries(common, magicInventory, func(entry []byte) error {
		count++
		return decode(entry, into)
	})
	if err == nil && count != 1 {
		err = fmt.Errorf("%w: it has %d entries", errFormat, count)
	}
	return err
}
