package nerdctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	types "github.com/containernetworking/cni/pkg/types/100"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/patience"
)

// maxFile bounds the files of nerdctl that are read whole.
const maxFile = 1 << 20

// Taken lists objects of nerdctl on this node that are in the way of an arriving container with these
// labels.
func Taken(p Place, labels map[string]string) []engine.Problem {
	var found []engine.Problem
	for _, directory := range []string{p.State(), p.Hosts()} {
		if _, err := os.Lstat(directory); !errors.Is(err, fs.ErrNotExist) {
			found = append(found, engine.Problem{What: directory, Why: "it already exists",
				Remedy: "remove it if no container needs it"})
		}
	}
	name := Name(labels)
	for _, directory := range p.names() {
		holder, err := readFile(filepath.Join(directory, name))
		switch {
		case name == "" || errors.Is(err, fs.ErrNotExist):
		case err != nil:
			found = append(found, engine.Problem{What: "name " + name, Why: err.Error(),
				Remedy: "rename the container that moves"})
		case string(holder) != p.ID && len(holder) > 0:
			found = append(found, engine.Problem{
				What: "name " + name, Why: fmt.Sprintf("container %.12s of nerdctl on this node has it",
					holder), Remedy: "remove or rename that container",
			})
		}
	}
	return found
}

// lifecycle is the file in which nerdctl records when a container was started.
type lifecycle struct {
	StartedAt   time.Time `json:"started_at"`
	CreateError bool      `json:"create_error"`
}

func (p Place) lifecycle() string { return filepath.Join(p.State(), "lifecycle.json") }

// Started returns when a container was started; zero if nerdctl has not recorded that.
func Started(p Place) (time.Time, error) {
	data, err := readFile(p.lifecycle())
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	var known lifecycle
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read when container %.12s was started: %w", p.ID, err)
	}
	return known.StartedAt, nil
}

// Make makes the files that nerdctl keeps for an arriving container with these labels, and reserves its
// name. Files that are mounted into the container are empty: see Bring.
func Make(ctx context.Context, program string, p Place, labels map[string]string, started time.Time) error {
	config, err := readLogConfig(p, labels[labelLogConfig])
	if err != nil {
		return err
	}
	settings, err := json.Marshal(config)
	if err != nil {
		return err
	}
	for _, directory := range []string{p.State(), p.Hosts()} {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			return err
		}
	}
	for _, path := range p.files() {
		if err := kernel.WriteFileAtomic(path, nil, 0o644); err != nil {
			return err
		}
	}
	err = errors.Join(
		kernel.WriteFileAtomic(p.Log(), nil, 0o600),
		kernel.WriteFileAtomic(filepath.Join(p.State(), "log-config.json"), settings, 0o600),
		NoteHosts(p, labels, nil),
	)
	if err == nil {
		err = acquire(ctx, program, p, labels)
	}
	if err != nil {
		return err
	}
	noted, err := json.Marshal(lifecycle{StartedAt: started})
	if err != nil {
		return err
	}
	return kernel.WriteFileAtomic(p.lifecycle(), noted, 0o600)
}

// NoteHosts records the names and addresses by which nerdctl's other containers reach this one, and the
// results of CNI's plugins by network name.
func NoteHosts(p Place, labels map[string]string, networks map[string]*types.Result) error {
	hosts, err := extraHosts(labels[labelExtraHosts])
	if err != nil {
		return err
	}
	meta, err := json.Marshal(struct {
		ID, Hostname, Name, Domainname string
		Networks                       map[string]*types.Result
		ExtraHosts                     map[string]string
	}{p.ID, labels[labelHostname], labels[labelName], labels[labelDomain], networks, hosts})
	if err != nil {
		return err
	}
	return kernel.WriteFileAtomic(filepath.Join(p.Hosts(), "meta.json"), meta, 0o600)
}

// acquire makes nerdctl assign a name to a container. Only nerdctl knows where it records names, and it
// does so as when the container is created without a network. It does not report if another container has
// the name, so acquire checks that.
func acquire(ctx context.Context, program string, p Place, labels map[string]string) error {
	bundle, err := os.MkdirTemp("", "godwit-nerdctl-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bundle)
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"root":{"path":"rootfs"}}`),
		0o600); err != nil {
		return err
	}
	state, err := json.Marshal(specs.State{
		Version: specs.Version, ID: p.ID, Status: specs.StateCreated, Bundle: bundle,
		Annotations: map[string]string{
			labelState: p.State(), prefix + "namespace": p.Namespace, labelName: Name(labels),
			labelNetworks: `["none"]`, labelExtraHosts: "[]",
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := patience.Question.For(ctx, Program, patience.Programs(Program))
	defer cancel()
	hook := Hooks(program, p).CreateRuntime[0]
	cmd := exec.CommandContext(ctx, hook.Path, hook.Args[1:]...)
	cmd.Env, cmd.Stdin = hook.Env, bytes.NewReader(state)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("reserve name %s with nerdctl: %w: %s", Name(labels), patience.Explain(ctx, err),
			bytes.TrimSpace(out))
	}
	if Name(labels) == "" {
		return nil
	}
	for _, directory := range p.names() {
		if holder, err := readFile(filepath.Join(directory, Name(labels))); err == nil &&
			string(holder) == p.ID {
			return nil
		}
	}
	return fmt.Errorf("another container of nerdctl has name %s", Name(labels))
}

// Forget removes the files that nerdctl keeps for a container that no longer exists, and frees its name.
func Forget(p Place, labels map[string]string) error {
	var errs []error
	for _, directory := range p.names() {
		if name := Name(labels); namePattern.MatchString(name) {
			errs = append(errs, locked(directory,
				func() error { return release(filepath.Join(directory, name), p.ID) }))
		}
	}
	errs = append(errs, locked(filepath.Dir(p.Hosts()), func() error { return files.RemoveTree(p.Hosts()) }))
	if err := errors.Join(append(errs, files.RemoveTree(p.State()))...); err != nil {
		return fmt.Errorf("remove nerdctl's records of container %.12s: %w", p.ID, err)
	}
	return nil
}

// release frees a name if this container has it.
func release(path, id string) error {
	holder, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(holder) != id {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// lockPatience is how long a nerdctl may hold a lock. A working nerdctl holds it for a few writes.
const lockPatience = time.Minute

// locked keeps nerdctl away from a directory that nerdctl locks as a whole.
func locked(directory string, do func() error) error {
	file, err := os.Open(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	for end := time.Now().Add(lockPatience); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return do()
		}
		// a hung nerdctl holds it
		if again := errors.Is(err, unix.EINTR) || errors.Is(err, unix.EWOULDBLOCK); !again ||
			time.Now().After(end) {
			return fmt.Errorf("lock %s: %w", directory, err)
		}
	}
}

// Keep copies the files that are mounted into a container to a directory.
func Keep(p Place, directory string) error {
	for _, path := range p.files() {
		data, err := readFile(path)
		if err == nil {
			err = kernel.WriteFileAtomic(filepath.Join(directory, filepath.Base(path)), data, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Bring fills the mounted files of an arrived container. They are mounted already, so each must stay the
// same file. The directory comes from another node.
func Bring(p Place, directory string) error {
	for _, path := range p.files() {
		data, err := readFile(filepath.Join(directory, filepath.Base(path)))
		if err != nil {
			return err
		}
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		_, err = file.Write(data)
		if err = errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// readFile reads a small file, which must be a regular file.
func readFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s is not a regular file, or is too large", path)
	}
	return io.ReadAll(io.LimitReader(file, maxFile))
}
