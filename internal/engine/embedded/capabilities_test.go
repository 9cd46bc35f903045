package embedded

import "testing"

// TestCapabilities: the engine has what its row in the table of engines says.
func TestCapabilities(t *testing.T) {
	can := new(Engine).Capabilities()
	if can.Restarter == nil || can.Protector == nil || can.LeaveNoter == nil {
		t.Errorf("a part is missing: %+v", can)
	}
	if err := can.Check(); err != nil {
		t.Error(err)
	}
}
