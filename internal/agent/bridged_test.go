package agent

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
)

// TestGone: a container that has come and ends may be started again by its engine: it is none only
// when that has removed it, or has given its address to another.
func TestGone(t *testing.T) {
	at := netip.MustParseAddr("172.30.0.2")
	one := func(id string, state engine.State, address string) engine.Container {
		found := engine.Container{Definition: engine.Definition{ID: id, EngineName: "docker"}, State: state}
		found.Definition.Network.Address, found.Definition.Network.Bridge = netip.MustParseAddr(address),
			"birds"
		if state == engine.Running {
			found.PID = 7
		}
		return found
	}
	ended, down := one("one", engine.Exited, "172.30.0.2"), errors.New("it does not answer")
	for name, c := range map[string]struct {
		came  bool
		now   engine.Container
		err   error
		all   []engine.Container
		gone  bool
		fails error
	}{
		"it runs": {true, one("one", engine.Running, "172.30.0.2"), nil, nil,
			false, nil},
		"it runs by another address": {true, one("one", engine.Running, "172.30.0.3"), nil, nil,
			true, nil},
		"it has ended": {true, ended, nil,
			[]engine.Container{ended, one("two", engine.Running, "172.30.0.3")}, false, nil},
		"another has its address": {true, ended, nil,
			[]engine.Container{ended, one("two", engine.Running, "172.30.0.2")}, true, nil},
		"another had its address": {true, ended, nil,
			[]engine.Container{ended, one("two", engine.Exited, "172.30.0.2")}, false, nil},
		"it never came": {false, ended, nil, nil, true, nil},
		"it is frozen": {true, one("one", engine.Frozen, "172.30.0.2"), nil, nil, false,
			nil},
		"it is removed":                      {true, engine.Container{}, engine.ErrNotFound, nil, true, nil},
		"nobody knows":                       {true, engine.Container{}, down, nil, false, down},
		"nobody knows whose address that is": {true, ended, nil, nil, false, down},
	} {
		place := network.BridgedPlace{Container: "one", Address: at, Here: true, Came: c.came}
		all := func() ([]engine.Container, error) {
			if c.err == nil {
				return c.all, c.fails
			}
			return nil, c.err
		}
		if gone, err := isGone(place, c.now, c.err, all); gone != c.gone || !errors.Is(err, c.fails) {
			t.Errorf("%s: %t, %v", name, gone, err)
		}
	}
}
