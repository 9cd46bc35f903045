package kernel

import (
	"testing"
)

func FuzzFault(f *testing.F) {
	for _, kind := range []FaultKind{FaultPage, FaultFork, FaultRemap, FaultRemove, FaultUnmap, 0} {
		f.Add(append([]byte{byte(kind)}, make([]byte, faultMessage-1)...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, child, err := parseFault(b)
		if err == nil && (len(b) != faultMessage || e.Kind < FaultPage || e.Kind > FaultUnmap ||
			(e.Kind == FaultFork) != (child >= 0)) {
			t.Errorf("%+v of %x, %d", e, b, child)
		}
	})
}
