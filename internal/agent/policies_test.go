package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cluster/clustertest"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network/wireguard"
	"github.com/godwit/godwit/internal/policy"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestPolicyRefusesOffers: the policy is asked before anything else is looked at, by the name of
// the node whose certificate the offer came with.
func TestPolicyRefusesOffers(t *testing.T) {
	a := newTestAgent(t)
	accept, directories := []string{"c"}, []string{"/srv"}
	a.config.Policy = policy.Policy{AcceptFrom: &accept, HostDirectories: &directories, MaxMemoryBytes: 10}
	definition := engine.Definition{Volumes: []engine.Volume{
		{Kind: engine.Bind, Source: "/srv/../etc", Path: "/x"}, {Kind: engine.Named, Name: "v", Path: "/y"},
	}}
	problems, err := a.examineOffer(t.Context(), "a", definition, &api.Offer{MemoryBytes: 11, Mode: "cold"})
	if err != nil {
		t.Fatal(err)
	}
	var whats []string
	for _, p := range problems {
		whats = append(whats, p.What)
		if !strings.Contains(p.Why, "policy of node b") || p.Remedy == "" {
			t.Errorf("%+v does not say whose policy it is, or what to do", p)
		}
	}
	if got := strings.Join(whats, ", "); got != "node a, host directory /etc, memory" {
		t.Errorf("refused: %s", got)
	}
}

func TestPolicyRefusesDepartures(t *testing.T) {
	a := newTestAgent(t)
	send, modes, engines := []string{"c"}, []string{"cold"}, []string{"godwit"}
	a.config.Policy = policy.Policy{SendTo: &send, Modes: &modes, Engines: &engines}
	for _, one := range []struct {
		to     string
		mode   migration.Mode
		engine string
		want   string
	}{
		{"c", migration.Cold, "", ""},
		{"c", migration.Auto, "", ""},
		{"b", migration.Cold, "", "node b"},
		{"c", migration.PostCopy, "", "mode post-copy"},
		{"c", migration.Cold, "docker", "engine docker"},
	} {
		err := a.departureRefused(one.to, one.mode, engine.Definition{EngineName: one.engine})
		var refused *migration.Refusal
		if one.want == "" && err != nil || one.want != "" &&
			(!errors.As(err, &refused) || refused.Problems[0].What != one.want) {
			t.Errorf("%+v: %v", one, err)
		}
	}
}

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
		id: both[0].ID, self: both[0].ID.Node, log: slog.New(slog.DiscardHandler),
		config: Config{StateDir: both[0].State, Policy: policy.Policy{Modes: &modes}},
	}
	var err error
	if agent.peers, err = agent.newPeers(); err != nil {
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
		refused := agent.refusedModes("b")
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

// TestPlanOffersAnAllowedMode: the target would refuse the plan for a mode that auto does not choose.
func TestPlanOffersAnAllowedMode(t *testing.T) {
	why := "a policy"
	for _, one := range []struct {
		refused map[migration.Mode]string
		want    migration.Mode
	}{
		{nil, migration.PreCopy},
		{map[migration.Mode]string{migration.PreCopy: why}, migration.Cold},
		{map[migration.Mode]string{migration.PreCopy: why, migration.Cold: why}, migration.Hybrid},
	} {
		if got := asAuto(one.refused); got != one.want {
			t.Errorf("%v: %s, want %s", one.refused, got, one.want)
		}
	}
}

// TestRoundsMustNotTurnIntoARefusedMode: neither at a user's wish nor by mode auto.
func TestRoundsMustNotTurnIntoARefusedMode(t *testing.T) {
	refused := map[migration.Mode]string{migration.Hybrid: refusedMode("b")}
	request := &api.MigrateRequest{Mode: "auto", OnNoConvergence: "hybrid"}
	_, err := forecast.DemandsOf(request, settingsFor(request, migration.Auto), migration.PostCopyAuto,
		refused)
	if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), refused[migration.Hybrid]) {
		t.Errorf("error %v", err)
	}
	s := forecast.NewSplit(migration.PostCopyAuto, migration.Settings{}, nil, nil)
	s.Forbid(refused[migration.Hybrid])
	if !strings.Contains(s.Refuses(), refused[migration.Hybrid]) || s.Request() == "" {
		t.Errorf("rounds may turn: %q", s.Refuses())
	}
}

func TestReadPolicy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.json")
	if _, err := ReadPolicy(path); err == nil {
		t.Error("a policy that is named and not there is no error")
	}
	if err := os.WriteFile(path, []byte(`{"modes": ["auto"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPolicy(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v for a policy that names mode auto", err)
	}
	if err := os.WriteFile(path, []byte(`{"modes": ["cold"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := ReadPolicy(path); err != nil || p.Modes == nil {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestPolicyTellsWhatIsObeyed: the policy is that which the agent was started with, and a file that
// was changed since is told of.
func TestPolicyTellsWhatIsObeyed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"accept_from": ["a"]}`)
	p, err := ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	service := &localService{agent: &Agent{config: Config{Policy: p, PolicyFile: file}}}
	for _, c := range []struct{ content, changed string }{
		{`{"accept_from": ["a"]}`, ""},
		{`{"accept_from": ["a", "c"]}`, "has changed"},
		{`{`, "unexpected EOF"},
	} {
		write(c.content)
		reply, err := service.Policy(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if reply.File != file || !slices.Equal(reply.Restricts, []string{"accept_from: a"}) {
			t.Errorf("%s: the agent obeys %s: %q", c.content, reply.File, reply.Restricts)
		}
		if (reply.Changed == "") != (c.changed == "") || !strings.Contains(reply.Changed, c.changed) {
			t.Errorf("%s: changed: %q, want %q", c.content, reply.Changed, c.changed)
		}
	}
}
