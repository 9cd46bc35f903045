package agent

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cluster/clustertest"
	"github.com/godwit/godwit/internal/departure"
	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network/wireguard"
	"github.com/godwit/godwit/internal/policy"
	"github.com/godwit/godwit/internal/wire/identity"
)

// quiet is a node without containers that other nodes hear of.
type quiet struct{}

func (quiet) Guests() []*api.Location                                { return nil }
func (quiet) HearGuests(string, []*api.Location)                     {}
func (quiet) Claims() ([]uint64, bool)                               { return nil, false }
func (quiet) HearClaims(string, []uint64)                            {}
func (quiet) Own() (*api.Overlay, error)                             { return nil, nil }
func (quiet) KeyProof(wireguard.Key, string, string) ([]byte, error) { return nil, nil }
func (quiet) Changed()                                               {}
func (quiet) Removed(identity.Revocation)                            {}
func (quiet) Lost(string)                                            {}
func (quiet) Back(string)                                            {}

// TestRefusedModesAreKnown: mode auto, and a plan of it, go by what both nodes refuse.
func TestRefusedModesAreKnown(t *testing.T) {
	both := clustertest.New(t, "a", "b")
	modes := []string{"pre-copy", "cold"}
	agent := &Agent{
		here: here{id: both[0].ID, self: both[0].ID.Node}, log: slog.New(slog.DiscardHandler),
		config: Config{StateDir: both[0].State, Policy: policy.Policy{Modes: &modes}},
	}
	var err error
	if agent.peers, err = newPeers(agent); err != nil {
		t.Fatal(err)
	}
	defer agent.peers.Close()
	agent.peers.Attach(quiet{}, quiet{}, quiet{})
	theirs, err := agent.peers.Find("b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.peers.Client(theirs); err != nil {
		t.Fatal(err)
	}
	for _, said := range [][]string{{"cold", "teleport"}, nil} {
		if _, err := agent.peers.Answer("b", &api.HelloRequest{Refuses: said}); err != nil {
			t.Fatal(err)
		}
		refused := newDepartures(agent).RefusedModes("b")
		want := map[migration.Mode]string{
			migration.PostCopy: "policy of node a", migration.Hybrid: "policy of node a",
			migration.Restart: "policy of node a",
		}
		if said != nil {
			want[migration.Cold] = "policy of node b"
		}
		for mode, by := range want {
			if !strings.Contains(refused[mode], by) {
				t.Errorf("%s: %q, want it refused by the %s", mode, refused[mode], by)
			}
		}
		if len(refused) != len(want) {
			t.Errorf("refused: %v", refused)
		}
	}
}

// TestRoundsMustNotTurnIntoARefusedMode: neither at a user's wish nor by mode auto.
func TestRoundsMustNotTurnIntoARefusedMode(t *testing.T) {
	refused := map[migration.Mode]string{migration.Hybrid: admission.RefusedMode("b")}
	request := &api.MigrateRequest{Mode: "auto", OnNoConvergence: "hybrid"}
	settings := departure.SettingsFor(request, migration.Auto)
	_, err := forecast.DemandsOf(request, settings, migration.PostCopyAuto, refused)
	if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), refused[migration.Hybrid]) {
		t.Errorf("error %v", err)
	}
	s := forecast.NewSplit(migration.PostCopyAuto, migration.Settings{}, nil, nil)
	s.Forbid(refused[migration.Hybrid])
	if !strings.Contains(s.Refuses(), refused[migration.Hybrid]) || s.Request() == "" {
		t.Errorf("rounds may turn: %q", s.Refuses())
	}
}
