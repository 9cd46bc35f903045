package oci

import (
	"errors"
	"testing"
)

func TestGoesOn(t *testing.T) {
	unknown := errors.New("no answer")
	for _, one := range []struct {
		frozen  bool
		unknown error
		alive   bool
		want    bool
	}{
		{false, nil, true, true}, {true, nil, true, false}, {false, unknown, true, false}, {false, unknown, false, true}, {true, nil, false, true},
	} {
		if got := goesOn(one.frozen, one.unknown, one.alive); got != one.want {
			t.Errorf("%+v", one)
		}
	}
}

// TestWaits: nothing is restored for a start that the engine has given up.
func TestWaits(t *testing.T) {
	a := &arrival{started: make(chan struct{})}
	if err := a.waits(); err != nil {
		t.Error(err)
	}
	a.startErr = errors.New("EOF")
	close(a.started)
	if err := a.waits(); !errors.Is(err, a.startErr) {
		t.Error(err)
	}
}
