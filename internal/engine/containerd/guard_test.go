package containerd

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestGuardHooks checks that the guard's hook comes first, and once, and that its removal restores the
// specification.
func TestGuardHooks(t *testing.T) {
	for name, spec := range map[string]string{
		"none":     `{"ociVersion":"1.0.2","linux":{"later":{"x":1}}}`,
		"others":   `{"hooks":{"createRuntime":[{"path":"/usr/bin/nerdctl","env":["GODWIT_GUARD=1"],"new":true}],"poststop":[{"path":"/x"}]}}`,
		"poststop": `{"hooks":{"poststop":[{"path":"/x"}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			guarded, err := withHooks([]byte(spec), guardedHooks)
			if err != nil {
				t.Fatal(err)
			}
			var read specs.Spec
			if err := json.Unmarshal(guarded, &read); err != nil {
				t.Fatal(err)
			}
			if read.Hooks == nil || read.Hooks.CreateRuntime[0].Path != "/bin/sh" {
				t.Errorf("guarded: %s", guarded)
			}
			if again, err := withHooks(guarded, guardedHooks); again != nil || err != nil {
				t.Errorf("guarded twice: %s, %v", again, err)
			}
			back, err := withHooks(guarded, unguardedHooks)
			if err != nil {
				t.Fatal(err)
			}
			var was, is any
			if err := json.Unmarshal([]byte(spec), &was); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(back, &is); err != nil || !reflect.DeepEqual(was, is) {
				t.Errorf("was %s, is %s: %v", spec, back, err)
			}
			if again, err := withHooks(back, unguardedHooks); again != nil || err != nil {
				t.Errorf("unguarded twice: %s, %v", again, err)
			}
		})
	}
	for _, bad := range []string{``, `[]`, `{"hooks":1}`, `{"hooks":{"createRuntime":{}}}`} {
		if changed, err := withHooks([]byte(bad), guardedHooks); err == nil {
			t.Errorf("%q became %s", bad, changed)
		}
	}
}
