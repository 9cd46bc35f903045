package lxc

import "testing"

// TestCapabilities: the engine has what its row in the table of engines says.
func TestCapabilities(t *testing.T) {
	if err := new(Engine).Capabilities().Check(); err != nil {
		t.Error(err)
	}
}
