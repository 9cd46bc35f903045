package admission

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/policy"
)

func TestPolicyRefusesDepartures(t *testing.T) {
	send, modes, engines := []string{"c"}, []string{"cold"}, []string{"godwit"}
	r := Rules{Node: "b", Policy: policy.Policy{SendTo: &send, Modes: &modes, Engines: &engines}}
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
		err := r.DepartureRefused(one.to, one.mode, engine.Definition{EngineName: one.engine})
		var refused *migration.Refusal
		if one.want == "" && err != nil || one.want != "" &&
			(!errors.As(err, &refused) || refused.Problems[0].What != one.want) {
			t.Errorf("%+v: %v", one, err)
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
		if got := AsAuto(one.refused); got != one.want {
			t.Errorf("%v: %s, want %s", one.refused, got, one.want)
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
