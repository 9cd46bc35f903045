package manifest

import "testing"

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func scratch(t *testing.T) string { return t.TempDir() }
