package docker

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/godwit/godwit/internal/engine/oci"
)

// TestStartsAtBoot checks that a policy for failures does not start a container that has ended without
// failure.
func TestStartsAtBoot(t *testing.T) {
	for name, c := range map[string]struct {
		policy container.RestartPolicyMode
		code   int
		want   bool
	}{
		"none":             {"", 1, false},
		"no":               {container.RestartPolicyDisabled, 1, false},
		"always":           {container.RestartPolicyAlways, 0, true},
		"unless stopped":   {container.RestartPolicyUnlessStopped, 0, true},
		"failed":           {container.RestartPolicyOnFailure, 1, true},
		"has done its job": {container.RestartPolicyOnFailure, 0, false},
	} {
		policy, err := json.Marshal(container.RestartPolicy{Name: c.policy})
		if err != nil {
			t.Fatal(err)
		}
		found := oci.Container{Native: container.InspectResponse{State: &container.State{ExitCode: c.code}}}
		if got := (&adapter{}).StartsAtBoot(found, policy); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestWindow checks that Docker can be queried for events after the node's clock was set back.
func TestWindow(t *testing.T) {
	now := time.Now()
	for _, since := range []time.Time{now.Add(-time.Minute), now, now.Add(time.Hour)} {
		from, until := window(since, now)
		if from.After(until) || from.After(since) || !until.Equal(now) {
			t.Errorf("since %s: from %s until %s, now %s", since, from, until, now)
		}
	}
}
