package lxc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzGroups: control groups from another node are refused, or are within the container's.
func FuzzGroups(f *testing.F) {
	f.Add(
		[]byte(
			`[{"hierarchy":"cpu,cpuacct","groups":[{"path":"system.slice","processes":[1],"values":{"cpu.shares":"1"}}]}]`))
	f.Add([]byte(`[{"hierarchy":"../..","groups":[{"path":"../..","values":{"../cgroup.procs":"1"}}]}]`))
	f.Add([]byte(`[{"hierarchy":"","groups":[{"path":"/","owners":{"..":{}}}]}]`))
	f.Add([]byte(`null`))
	directory := f.TempDir()
	f.Fuzz(func(t *testing.T, document []byte) {
		if err := os.WriteFile(filepath.Join(directory, groupsName), document, 0o600); err != nil {
			t.Fatal(err)
		}
		groups, err := readGroups(directory)
		if err != nil {
			return
		}
		for _, hierarchy := range groups {
			for _, group := range hierarchy.Groups {
				if !filepath.IsLocal(group.Path) {
					t.Errorf("group %q is taken", group.Path)
				}
				for name := range group.Values {
					if strings.Contains(name, "/") {
						t.Errorf("file %q of a group is taken", name)
					}
				}
				for name := range group.Owners {
					if strings.Contains(name, "/") || name == ".." {
						t.Errorf("owner of %q is taken", name)
					}
				}
			}
		}
	})
}
