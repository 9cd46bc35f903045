package copies

import (
	"testing"

	"github.com/godwit/godwit/internal/files/filestest"
)

// snapshot describes a tree completely, without the code under test.
func snapshot(t *testing.T, path string, attributes func(string) bool) filestest.Snapshot {
	t.Helper()
	lines, err := filestest.Take(path, filestest.Options{Xattrs: attributes})
	check(t, err)
	return lines
}

// same compares two snapshots and shows what differs.
func same(t *testing.T, want, got map[string]string) {
	t.Helper()
	for _, difference := range filestest.Differences(want, got, 10) {
		t.Error(difference)
	}
}
