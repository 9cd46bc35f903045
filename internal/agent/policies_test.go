package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/policy"
)

// TestPolicyRefusesOffers: the policy is asked before anything else is looked at, by the name of the node whose
// certificate the offer came with.
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
		if !strings.Contains(p.Why, "policy of b") || p.Remedy == "" {
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
		var refused *problemsError
		if one.want == "" && err != nil || one.want != "" && (!errors.As(err, &refused) || refused.problems[0].What != one.want) {
			t.Errorf("%+v: %v", one, err)
		}
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
