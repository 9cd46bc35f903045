package embedded

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded/account"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// maxResolvConf bounds how much of the node's resolv.conf is read.
const maxResolvConf = 64 << 10

// bundles makes the files of containers: their directories, the root file system, and the OCI
// specification.
type bundles struct {
	paths  paths
	images Images
	resolv string // path of the node's resolv.conf
}

// makeFiles makes a container's directories and its first record. The caller writes the definition last,
// which makes it a container.
func (b *bundles) makeFiles(d engine.Definition) error {
	files := b.paths.of(d.ID)
	for _, dir := range []string{files.upper(), files.work(), files.private()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	if err := os.Chmod(files.dir(), 0o700); err != nil {
		return fmt.Errorf("protect directory: %w", err)
	}
	return durable.Save(files.record(), record{State: engine.Created})
}

// makePrivate writes the files that are mounted into a container's /etc.
func (b *bundles) makePrivate(d engine.Definition) error {
	resolv, err := b.resolvConf()
	if err != nil {
		return err
	}
	contents := map[string]string{
		"resolv.conf": resolv,
		"hostname":    hostname(d) + "\n",
		"hosts":       hostsOf(d),
	}
	for name, content := range contents {
		path := filepath.Join(b.paths.of(d.ID).private(), name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("write %s of the container: %w", name, err)
		}
	}
	return nil
}

func hostsOf(d engine.Definition) string {
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost " +
		"ip6-loopback\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n"
	if d.Network.Address.IsValid() {
		hosts += d.Network.Address.String() + "\t" + hostname(d) + "\n"
	}
	return hosts
}

// resolvConf returns the node's resolv.conf without name servers at loopback addresses, where nobody
// listens in the container.
func (b *bundles) resolvConf() (string, error) {
	file, err := os.Open(b.resolv)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the node's resolv.conf: %w", err)
	}
	defer file.Close()
	var kept strings.Builder
	scanner := bufio.NewScanner(io.LimitReader(file, maxResolvConf))
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) >= 2 && fields[0] == "nameserver" {
			if address, err := netip.ParseAddr(fields[1]); err != nil || address.IsLoopback() {
				continue
			}
		}
		kept.WriteString(scanner.Text() + "\n")
	}
	return kept.String(), scanner.Err()
}

// mountRoot mounts a container's root file system.
func (b *bundles) mountRoot(d engine.Definition) error {
	place := b.paths.of(d.ID)
	layers := make([]string, len(d.Layers))
	for i, id := range d.Layers {
		path, err := b.images.LayerPath(id)
		if err != nil {
			return fmt.Errorf("layer %s: %w", id, err)
		}
		layers[i] = path
	}
	return mounts.Overlay{Layers: layers, Upper: place.upper(), Work: place.work(),
		Target: place.rootfs()}.Mount()
}

// saveSpec writes a container's OCI specification.
func (b *bundles) saveSpec(d engine.Definition, netns string, who account.Account) error {
	spec, err := b.specOf(d, netns, who)
	if err != nil {
		return err
	}
	return durable.Save(b.paths.of(d.ID).spec(), spec)
}

func (b *bundles) specOf(d engine.Definition, netns string, who account.Account) (*specs.Spec, error) {
	return makeSpec(specInput{
		definition: d, files: b.paths.of(d.ID), netns: netns, user: who.User, home: who.Home,
		unified: unified(),
	})
}

// refreshSpec rewrites the specification for a start, because the meaning of its user is known only when
// the root is mounted.
func (b *bundles) refreshSpec(d engine.Definition) error {
	old, err := loadSpec(b.paths.of(d.ID))
	if err != nil {
		return err
	}
	who, err := account.Resolve(b.paths.of(d.ID).rootfs(), d.User)
	if err != nil {
		return err
	}
	return b.saveSpec(d, netnsOf(old), who)
}

// removingPrefix is the prefix of the directory of a container whose removal has begun.
const removingPrefix = ".removing-"

// removeFiles removes a container's directory, and the given directories of volumes. A crash leaves either
// everything, or a directory that the next start of the engine removes.
func removeFiles(place container, volumes []string) error {
	for _, path := range volumes {
		if err := removeVolume(path); err != nil {
			return err
		}
	}
	doomed := filepath.Join(place.paths.containers(), removingPrefix+place.id)
	err := os.Rename(place.dir(), doomed)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = kernel.SyncDir(place.paths.containers())
	}
	if err == nil {
		err = files.RemoveTree(doomed)
	}
	if err != nil {
		return fmt.Errorf("remove place of container %.12s: %w", place.id, err)
	}
	return nil
}

// Images locates the layers of images.
type Images interface {
	// LayerPath returns the directory with the content of a layer, by its DiffID.
	LayerPath(diffID string) (string, error)
}
