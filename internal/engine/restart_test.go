package engine

import "testing"

func TestParseRestartPolicy(t *testing.T) {
	for text, want := range map[string]RestartPolicy{
		"": {When: RestartNo}, "no": {When: RestartNo}, "always": {When: RestartAlways},
		"unless-stopped": {When: RestartUnlessStopped}, "on-failure": {When: RestartOnFailure},
		"on-failure:5": {When: RestartOnFailure, Most: 5},
	} {
		if got, err := ParseRestartPolicy(text); err != nil || got != want {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"never", "Always", "always:3", "no:1", ":3", "on-failure:", "on-failure:0", "on-failure:-1",
		"on-failure:+1", "on-failure:01",
		"on-failure:1:2", "on-failure:99999999", " always",
	} {
		if got, err := ParseRestartPolicy(text); err == nil {
			t.Errorf("%q is taken as %+v", text, got)
		}
	}
}

func FuzzParseRestartPolicy(f *testing.F) {
	f.Add("on-failure:3")
	f.Add("always")
	f.Fuzz(func(t *testing.T, text string) {
		policy, err := ParseRestartPolicy(text)
		if err == nil && (policy.Most < 0 || policy.Most > 0 && policy.When != RestartOnFailure) {
			t.Errorf("%q is %+v", text, policy)
		}
	})
}
