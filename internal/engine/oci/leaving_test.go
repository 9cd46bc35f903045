package oci

import (
	"slices"
	"testing"
)

// TestExternalDescriptors reads what runc knows, and crun.
func TestExternalDescriptors(t *testing.T) {
	want := []string{"/dev/null", "pipe:[1]", "pipe:[2]"}
	for _, state := range []string{
		`{"id": "x", "external_descriptors": ["/dev/null", "pipe:[1]", "pipe:[2]"]}`,
		`{"pid": 7, "external_descriptors": "[\"/dev/null\",\"pipe:[1]\",\"pipe:[2]\"]"}`,
	} {
		if got, err := externalDescriptors([]byte(state)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", state, got, err)
		}
	}
	for _, state := range []string{"", `{"external_descriptors": "nonsense"}`, `{"external_descriptors": 3}`, `{"external_descriptors": {}}`} {
		if got, err := externalDescriptors([]byte(state)); err == nil {
			t.Errorf("%q: %q", state, got)
		}
	}
	if got, err := externalDescriptors([]byte(`{}`)); err != nil || got != nil {
		t.Errorf("none: %q, %v", got, err)
	}
}
