package oci

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// memories are a container's file systems in memory that travel as trees of files, not with the execution
// state. The agent holds each of them open, so the container cannot put something else in its place.
type memories struct {
	of   checkpoint.Identity // the container's first process
	held []*os.File          // by their places in the container
}

// ownMemories returns the places of a running container's file systems in memory that godwit-runc makes at
// the target. If something else is mounted at such a place, or more than once, it goes with the execution
// state.
func ownMemories(spec *specs.Spec, mounted []kernel.Mount) []string {
	var places []string
	for _, m := range shim.Memories(spec) {
		if one, found := mountedOnce(mounted, m.Destination); found && one.Type == "tmpfs" &&
			one.Root == "/" {
			places = append(places, m.Destination)
		}
	}
	return places
}

func mountedOnce(mounted []kernel.Mount, place string) (one kernel.Mount, found bool) {
	for _, m := range mounted {
		if m.Point == place {
			if found {
				return one, false
			}
			one, found = m, true
		}
	}
	return one, found
}

// externals lists what CRIU does not dump of a running container: objects from outside the container, and
// objects that travel another way.
func (a alive) externals(root string) (criu.Externals, error) {
	pid := a.found.Container.PID
	e, err := criu.ExternalFor(a.spec, root, pid)
	if err != nil {
		return e, err
	}
	mounted, err := kernel.ReadMounts(pid)
	if err != nil {
		return e, err
	}
	places := ownMemories(a.spec, mounted)
	if cgroups := shim.CgroupRoot(a.spec); cgroups != "" {
		one, found := mountedOnce(mounted, cgroups)
		// read-only, so nothing else is in it
		if found && one.Type == "tmpfs" && slices.Contains(strings.Split(one.Flags, ","), "ro") {
			places = append(places, cgroups)
		}
	}
	for _, place := range places {
		e.Mounts = append(e.Mounts, criu.Mount{Key: place, Value: place})
	}
	return e, nil
}

// held has the memory of containers that are being examined, or that leave.
type held struct {
	mu       sync.Mutex
	memories map[string]memories // by ID
}

// memoryTrees returns the trees of files in memory of a running container.
func (h *held) memoryTrees(id string, a alive) ([]files.Tree, error) {
	pid := a.found.Container.PID
	first, err := checkpoint.Identify(pid)
	if err != nil {
		return nil, err
	}
	mounted, err := kernel.ReadMounts(pid)
	if err != nil {
		return nil, err
	}
	places := ownMemories(a.spec, mounted)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropMemories(func(_ string, m memories) bool { return !m.of.Alive() })
	here, known := h.memories[id]
	if !known || here.of != first || len(here.held) != len(places) {
		if here, err = holdMemories(first, places); err != nil {
			return nil, err
		}
		h.dropMemories(func(other string, _ memories) bool { return other == id })
		h.memories[id] = here
	}
	return here.trees()
}

// trees returns trees for one caller to open and to let go of, whatever becomes of the container meanwhile:
// a closed descriptor's number may come to mean another container's memory.
func (m memories) trees() (trees []files.Tree, err error) {
	for _, held := range m.held {
		fd, err := unix.FcntlInt(held.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			files.LetGo(trees)
			return nil, fmt.Errorf("hold what is mounted at %s: %w", held.Name(), err)
		}
		own := os.NewFile(uintptr(fd), held.Name())
		trees = append(trees, files.Tree{Kind: files.Memory, Name: held.Name(),
			Path: fmt.Sprintf("/proc/self/fd/%d", fd), Held: own})
	}
	return trees, nil
}

// LetGo releases the memory held of containers that have ended.
func (h *held) LetGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropMemories(func(_ string, m memories) bool { return !m.of.Alive() })
}

func holdMemories(first checkpoint.Identity, places []string) (memories, error) {
	m := memories{of: first}
	for _, place := range places {
		held, err := kernel.CloneMount(first.PID, place)
		if err != nil {
			m.drop()
			return m, err
		}
		m.held = append(m.held, held)
	}
	return m, nil
}

func (m memories) drop() {
	for _, held := range m.held {
		_ = held.Close() // only opened for reading
	}
}

// drop releases the memories of a container.
func (h *held) drop(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropMemories(func(other string, _ memories) bool { return other == id })
}

// dropMemories releases the memories of some containers. The caller has locked mu.
func (h *held) dropMemories(which func(id string, m memories) bool) {
	for id, m := range h.memories {
		if which(id, m) {
			m.drop()
			delete(h.memories, id)
		}
	}
}
