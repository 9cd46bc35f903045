package embedded

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
)

// maxResolvConf bounds what is read of the node's resolv.conf.
const maxResolvConf = 64 << 10

// makeFiles makes a container's directories and its first record. The definition, which makes it a
// container, is the caller's to write, last.
func (e *Engine) makeFiles(d engine.Definition) error {
	files := e.paths.of(d.ID)
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

// makePrivate writes the files that a container has in its /etc from outside.
func (e *Engine) makePrivate(d engine.Definition) error {
	resolv, err := e.resolvConf()
	if err != nil {
		return err
	}
	contents := map[string]string{
		"resolv.conf": resolv,
		"hostname":    hostname(d) + "\n",
		"hosts":       hostsOf(d),
	}
	for name, content := range contents {
		path := filepath.Join(e.paths.of(d.ID).private(), name)
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

// resolvConf is the node's, without name servers at loopback addresses: there is nobody at those in
// the container.
func (e *Engine) resolvConf() (string, error) {
	file, err := os.Open(e.config.ResolvConf)
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
func (e *Engine) mountRoot(d engine.Definition) error {
	place := e.paths.of(d.ID)
	layers := make([]string, len(d.Layers))
	for i, id := range d.Layers {
		path, err := e.config.Images.LayerPath(id)
		if err != nil {
			return fmt.Errorf("layer %s: %w", id, err)
		}
		layers[i] = path
	}
	return mounts.Overlay{Layers: layers, Upper: place.upper(), Work: place.work(),
		Target: place.rootfs()}.Mount()
}

// saveSpec writes a container's OCI specification.
func (e *Engine) saveSpec(d engine.Definition, netns string, who account) error {
	spec, err := e.specOf(d, netns, who)
	if err != nil {
		return err
	}
	return durable.Save(e.paths.of(d.ID).spec(), spec)
}

func (e *Engine) specOf(d engine.Definition, netns string, who account) (*specs.Spec, error) {
	return makeSpec(specInput{
		definition: d, files: e.paths.of(d.ID), netns: netns, user: who.user, home: who.home,
		unified: unified(),
	})
}

// loadSpec reads a container's OCI specification.
func loadSpec(files container) (*specs.Spec, error) {
	data, err := os.ReadFile(files.spec())
	if err != nil {
		return nil, fmt.Errorf("read specification of container %.12s: %w", files.id, err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("decode specification of container %.12s: %w", files.id, err)
	}
	return &spec, nil
}

// refreshSpec writes the specification anew for a start: what its user means is known only when the
// root is mounted.
func (e *Engine) refreshSpec(d engine.Definition) error {
	old, err := loadSpec(e.paths.of(d.ID))
	if err != nil {
		return err
	}
	who, err := resolveUser(e.paths.of(d.ID).rootfs(), d.User)
	if err != nil {
		return err
	}
	return e.saveSpec(d, netnsOf(old), who)
}

// netnsOf is the path of the network namespace in a specification.
func netnsOf(spec *specs.Spec) string {
	if spec.Linux == nil {
		return ""
	}
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			return ns.Path
		}
	}
	return ""
}

// unified tells whether this node has only cgroup v2, as runc sees it.
func unified() bool {
	var stat unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &stat) == nil && stat.Type == unix.CGROUP2_SUPER_MAGIC
}

// encodeExtra writes this engine's part of a definition.
func encodeExtra(x extra) json.RawMessage {
	data, err := json.Marshal(x)
	if err != nil { // strings always encode
		return nil
	}
	return data
}
