package lxc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// payloadPrefix begins LXC's names for control groups of containers. An init such as systemd makes groups
// within, and is in one of them.
const payloadPrefix = "lxc.payload."

// containerGroup returns the control group of the container to which a process belongs.
func containerGroup(pid int) (*cgroup.Cgroup, error) { return cgroup.Around(pid, payloadPrefix) }

// groupsName is a file beside CRIU's images: the groups within the container's.
const groupsName = "godwit-groups.json"

// maxGroups bounds that file.
const maxGroups = 4 << 20

func writeGroups(directory string, groups []cgroup.InnerGroups) error {
	data, err := json.Marshal(groups)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(directory, groupsName), data, 0o600)
}

// readGroups reads the groups that another node has sent.
func readGroups(directory string) ([]cgroup.InnerGroups, error) {
	text, err := readBounded(filepath.Join(directory, groupsName), maxGroups)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("the control groups of the container have not come")
	}
	if err == nil && len(text) > maxGroups {
		err = fmt.Errorf("they take more than %d bytes", maxGroups)
	}
	var groups []cgroup.InnerGroups
	if err == nil {
		err = json.Unmarshal([]byte(text), &groups)
	}
	if err == nil {
		err = cgroup.CheckInner(groups)
	}
	if err != nil {
		return nil, fmt.Errorf("control groups of the container: %w", err)
	}
	return groups, nil
}

// makeGroups makes the groups within the container's, still without processes: restored processes may watch
// them.
func (a *arrival) makeGroups() ([]cgroup.InnerGroups, error) {
	groups, err := readGroups(a.place.images())
	if err != nil || len(groups) == 0 {
		return nil, err
	}
	group, err := a.payload()
	if err != nil {
		return nil, err
	}
	if err := limit(slices.DeleteFunc(slices.Clone(a.settings), isLate), group); err != nil {
		return nil, err
	}
	a.settings = slices.DeleteFunc(slices.Clone(a.settings), func(one setting) bool { return !isLate(one) })
	return groups, group.MakeInner(groups)
}

// isLate reports whether a setting can be written when there are groups within: all except limits of devices
// and of a set of CPUs.
func isLate(one setting) bool {
	return !slices.ContainsFunc([]string{"lxc.cgroup.devices.", "lxc.cgroup2.devices.", "lxc.cgroup.cpuset."},
		func(early string) bool {
			return strings.HasPrefix(one.key, early)
		})
}

// payload returns the container's control group: in all hierarchies, the group into which LXC has put the
// restoring process.
func (a *arrival) payload() (*cgroup.Cgroup, error) {
	group, err := cgroup.Open(a.place.payload())
	if err != nil {
		return nil, err
	}
	pids, err := group.Procs()
	if err == nil && len(pids) == 0 {
		err = errors.New("nothing is in the container's control group")
	}
	if err != nil {
		return nil, err
	}
	return containerGroup(pids[0])
}
