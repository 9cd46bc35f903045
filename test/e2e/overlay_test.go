package e2e

import (
	"encoding/json"
	"testing"
)

// TestOverlay: traffic between containers on different nodes is encrypted without any configuration.
func TestOverlay(t *testing.T) {
	t.Parallel()
	c := state(t, nil, "tcp")
	p := c.dial("b", "from-b")
	p.write(1000)
	c.ok("drain", p.name, "1000")
	for _, node := range nodes() {
		out, err := godwit(t.Context(), node, "nodes", "--measure=false", "--json")
		if err != nil || out.code != 0 {
			t.Fatalf("nodes: %v, exit code %d: %s", err, out.code, out.stderr)
		}
		var list []struct {
			Name         string `json:"name"`
			Self         bool   `json:"self"`
			Overlay      string `json:"overlay"`
			OverlayError string `json:"overlay_error"`
		}
		if err := json.Unmarshal([]byte(out.stdout), &list); err != nil {
			t.Fatalf("%v: %s", err, out.stdout)
		}
		for _, one := range list {
			encrypted := one.Overlay == "wireguard" || one.Self &&
				(one.Overlay == "wireguard (kernel)" || one.Overlay == "wireguard (process)")
			if !encrypted || one.OverlayError != "" {
				t.Errorf("%s says of %s: %q, error %q", node, one.Name, one.Overlay, one.OverlayError)
			}
		}
	}
}
