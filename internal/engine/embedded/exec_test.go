package embedded

import (
	"slices"
	"testing"
)

func TestMergeEnvironment(t *testing.T) {
	got := mergeEnvironment([]string{"A=1", "B=2", "C=3"}, []string{"B=x", "D=4"})
	if !slices.Equal(got, []string{"A=1", "C=3", "B=x", "D=4"}) {
		t.Errorf("%v", got)
	}
}
