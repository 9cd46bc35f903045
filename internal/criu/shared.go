package criu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	images "github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/kernel"
)

// Memory that processes share without a file (shared anonymous mappings, memfds) can be carried by somebody
// else. CRIU recognises it by its device number and dumps its content. CRIU leaves any other file out if it
// is told that the file is external (--external file[mount:inode]). At the restore it takes the file from a
// descriptor (--inherit-fd), which it opens again for each mapping and each open file, with the original
// flags and position (criu/files-reg.c, open_path). So CRIU is made not to recognise that number, which is
// among the facts about the kernel that CRIU keeps in a file.

// kernelFacts is the file in which CRIU keeps facts about the kernel (criu/kerndat.c). It must be on a
// tmpfs.
const kernelFacts = "/run/criu.kdat"

const (
	// factsDevice is the offset of the device number in it: after two magic numbers of 32 bits
	// (criu/include/kerndat.h).
	factsDevice = 8
	maxFacts    = 64 << 10
	// factsTries is the number of attempts: on a busy machine one probe in fifty fails, and then CRIU keeps
	// nothing.
	factsTries = 4
	// noDevice is not the number of any device: major numbers have 12 bits.
	noDevice = 0xFFFF_FFFE
)

// KernelFacts are the facts that a CRIU has found out about this kernel.
type KernelFacts struct {
	data   []byte
	device uint64 // of shared memory
	mount  uint64 // the mount of its device
}

// KernelFacts makes CRIU find out facts about the kernel, which takes some 50 ms.
func (t Tool) KernelFacts(ctx context.Context) (*KernelFacts, error) {
	facts, err := t.kernelFacts(ctx)
	for try := 1; errors.Is(err, fs.ErrNotExist) && try < factsTries; try++ {
		facts, err = t.kernelFacts(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("read CRIU's cache of kernel features: %w", err)
	}
	return facts, nil
}

func (t Tool) kernelFacts(ctx context.Context) (*KernelFacts, error) {
	device, mount, err := kernel.SharedDevice()
	if err != nil {
		return nil, err
	}
	s, err := startSession(t.Path, sessionFiles{mounts: emptyRun})
	if err != nil {
		return nil, err
	}
	defer s.kill()
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := s.probe(ctx); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", s.process.Process.Pid, kernelFacts))
	if err != nil {
		return nil, err
	}
	if len(data) < factsDevice+8 || len(data) > maxFacts ||
		binary.NativeEndian.Uint64(data[factsDevice:]) != device {
		return nil, fmt.Errorf("%d bytes have an unknown format", len(data))
	}
	return &KernelFacts{data: data, device: device, mount: mount}, nil
}

// probe makes CRIU find out facts about the kernel, as any query for a feature does (cr-service.c,
// handle_feature_check).
func (s *session) probe(ctx context.Context) error {
	stop := s.interruptOn(ctx)
	defer stop()
	request := &rpc.CriuReq{
		Type: rpc.CriuReqType_FEATURE_CHECK.Enum(), Features: &rpc.CriuFeatures{PidfdStore: proto.Bool(true)},
	}
	if err := s.send(request, nil); err != nil {
		return err
	}
	var answer rpc.CriuResp
	if _, err := s.receive(&answer); err != nil {
		return errEnded(ctx, err)
	}
	return nil // What it can do does not matter here.
}

// emptyRun hides earlier facts from CRIU, and lets it store new ones, in the mount namespace of this thread
// alone.
func emptyRun() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", filepath.Dir(kernelFacts), "tmpfs", flags,
		"mode=0755,size=1m"); err != nil {
		return fmt.Errorf("mount memory for CRIU's cache of kernel features: %w", err)
	}
	return nil
}

// place makes CRIU find the facts in a directory that otherwise looks like /run, in the mount namespace of
// this thread alone. It returns the file, so that the caller can change what CRIU will read. A mount over
// the file in the real directory would vanish if somebody else replaced or removed the file, which each
// CRIU does if /run is not a tmpfs.
func (f *KernelFacts) place() (*os.File, error) {
	dir := filepath.Dir(kernelFacts)
	whole, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", dir, err)
	}
	defer whole.Close()
	entries, err := whole.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", dir, err)
	}
	if err := emptyRun(); err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue // CRIU does not need it
		}
		at, from := filepath.Join(dir, e.Name()), fmt.Sprintf("/proc/self/fd/%d/%s", whole.Fd(), e.Name())
		err := os.Mkdir(at, 0o755)
		if err == nil {
			err = unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it has vanished meanwhile
			return nil, fmt.Errorf("show %s to CRIU: %w", at, err)
		}
	}
	file, err := os.OpenFile(kernelFacts, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write CRIU's cache of kernel features: %w", err)
	}
	if _, err := file.Write(f.data); err != nil {
		return nil, errors.Join(fmt.Errorf("write CRIU's cache of kernel features: %w", err), file.Close())
	}
	return file, nil
}

// LeaveShared leaves the content of shared memory out of the dump. inodes must be those of all shared
// anonymous mappings and memfds of the processes (memory.Source.Shared). LeaveShared returns false if that
// is impossible; then everything is dumped. Call it before Run.
func (d *Dump) LeaveShared(inodes []uint64) (bool, error) {
	if d.facts == nil || len(inodes) == 0 {
		return false, nil
	}
	unknown := binary.NativeEndian.AppendUint64(nil, noDevice)
	if _, err := d.facts.WriteAt(unknown, factsDevice); err != nil {
		return false, fmt.Errorf("leave shared memory out of the dump: %w", err)
	}
	for _, inode := range inodes {
		d.request.External = append(d.request.External, sharedKey(d.request.Facts.mount, inode))
	}
	return true, nil
}

// sharedKey returns CRIU's name for a file from outside.
func sharedKey(mount, inode uint64) string { return fmt.Sprintf("file[%x:%x]", mount, inode) }

// SharedFile is shared memory that a restore takes from outside.
type SharedFile struct {
	Key   string
	Inode uint64 // at the source
}

// maxSharedFiles bounds the number of files that a restore takes from outside.
const maxSharedFiles = 512

// SharedFiles lists, from the images of a dump, what LeaveShared has left out and a restore must be given
// (ProxyOptions.Inherit).
func SharedFiles(imagesDir string) ([]SharedFile, error) {
	data, err := os.ReadFile(filepath.Join(imagesDir, filesImage))
	if err != nil {
		return nil, fmt.Errorf("list the shared memory that a dump left out: %w", err)
	}
	all, err := sharedFiles(data)
	if err != nil {
		return nil, fmt.Errorf("list the shared memory that a dump left out: %w", err)
	}
	return all, nil
}

func sharedFiles(image []byte) ([]SharedFile, error) {
	var all []SharedFile
	seen := map[string]bool{}
	err := eachFile(image, func(entry *images.FileEntry, _ []byte) error {
		name := entry.GetReg().GetName()
		if !entry.GetReg().GetExt() || seen[name] {
			return nil
		}
		seen[name] = true
		var mount, inode uint64
		if n, err := fmt.Sscanf(name, "file[%x:%x]", &mount, &inode); n != 2 || err != nil ||
			sharedKey(mount, inode) != name {
			return fmt.Errorf("%w: external file %.100q", errFilesImage, name)
		}
		all = append(all, SharedFile{Key: name, Inode: inode})
		return nil
	})
	if err == nil && len(all) > maxSharedFiles {
		err = fmt.Errorf("there are %d, more than %d", len(all), maxSharedFiles)
	}
	return all, err
}
