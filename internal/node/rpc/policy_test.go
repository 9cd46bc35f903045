package rpc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/admission"
)

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
	p, err := admission.ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	service := &PolicyService{File: file, Obeyed: p}
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
