package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

// TestListOfNodesLost: a node that has lost its list of nodes does not assume that it is the only node.
func TestListOfNodesLost(t *testing.T) {
	all := newMembers(t, "a", "b")
	one := all[1]
	before := one.AllOthers()
	if err := os.Remove(filepath.Join(one.state, "nodes.json")); err != nil {
		t.Fatal(err)
	}
	lost := openMember(t, one.id, one.state).AllOthers()
	if len(lost) != 1 || lost[0].Name != unknownNode || one.Reaches(unknownNode) {
		t.Errorf("with its list the node asks %+v, without it %+v", before, lost)
	}
	for _, node := range before {
		if node.Name == unknownNode {
			t.Errorf("with its list the node asks %+v", before)
		}
	}
}
