package labtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/godwit/godwit/internal/lab"
)

// Processes lists the processes of a node below its init, including those of its containers, with their
// arguments.
func Processes(init int) map[int]string {
	parents, arguments := map[int]int{}, map[int]string{}
	directories, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil // the pattern is constant and valid
	}
	for _, directory := range directories {
		var pid, parent int
		stat, err := os.ReadFile(directory + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		after := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
		var letter string
		if _, err := fmt.Sscan(after, &letter, &parent); err != nil {
			continue
		}
		if _, err := fmt.Sscan(filepath.Base(directory), &pid); err != nil {
			continue
		}
		line, _ := os.ReadFile(directory + "/cmdline") // ended meanwhile: no arguments
		parents[pid], arguments[pid] = parent, strings.ReplaceAll(string(line), "\x00", " ")
	}
	below := map[int]string{}
	for pid := range parents {
		for at := parents[pid]; at != 0; at = parents[at] {
			if at == init {
				below[pid] = arguments[pid]
				break
			}
		}
	}
	return below
}

// View lists a node's objects to which containers and migrations add, one line each: processes, mounts,
// interfaces, routes, rules of nftables, network namespaces, cgroups, and the contents of some directories.
func View(ctx context.Context, of *lab.Lab, node string, directories ...string) ([]string, error) {
	root, err := of.Root(node)
	if err != nil {
		return nil, err
	}
	init, err := of.PID(node)
	if err != nil {
		return nil, err
	}
	v := viewProcesses(init)
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", init))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		v = append(v, "mount at "+strings.Fields(line)[4])
	}
	for _, args := range [][]string{
		{"ip", "-o", "link"}, {"ip", "route", "show", "table", "all"}, {"ip", "rule"},
		{"nft", "--stateless", "list", "ruleset"},
	} {
		out, err := of.Exec(ctx, node, args...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			v = append(v, args[0]+" "+strings.TrimSpace(line))
		}
	}
	for _, pattern := range directories {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		v = append(v, paths...)
	}
	cgroups, err := viewCgroups(filepath.Join(root, "sys/fs/cgroup"))
	return append(v, cgroups...), err
}

// viewProcesses also lists the processes' network namespaces.
func viewProcesses(init int) (v []string) {
	for process, arguments := range Processes(init) {
		if strings.HasPrefix(arguments, "godwit-lab lab-") || strings.Contains(arguments, "lab-child") {
			continue
		}
		v = append(v, fmt.Sprintf("process %d %s", process, arguments))
		// otherwise it has ended
		if network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", process)); err == nil {
			v = append(v, "network namespace "+network)
		}
	}
	return v
}

func viewCgroups(top string) (v []string, err error) {
	err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err == nil && d.IsDir() {
			v = append(v, "cgroup "+path)
		}
		return err
	})
	return v, err
}
