package kernel

import "testing"

func TestFeatures(t *testing.T) {
	for _, f := range Features() {
		t.Logf("%-45s %v", f.Name, f.Probe())
	}
	m, err := ReadMachine()
	t.Logf("%+v %v", m, err)
}
