package main

import (
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/doctor"
)

func TestOverlayRequirement(t *testing.T) {
	self := func(overlay string) *api.Node { return &api.Node{Name: "a", Self: true, Overlay: overlay} }
	for _, test := range []struct {
		nodes  []*api.Node
		status doctor.Status
		says   string
	}{
		{[]*api.Node{self("wireguard (process)"), {Name: "b", Overlay: "wireguard"}}, doctor.Found,
			"wireguard (process)"},
		{[]*api.Node{self("wireguard")}, doctor.Found, "once there is another node"},
		{[]*api.Node{self("vxlan")}, doctor.Missing, "nothing is encrypted"},
		{[]*api.Node{self("wireguard (kernel)"), {Name: "b", OverlayError: "its overlay is vxlan"}},
			doctor.Missing, "b: its overlay is vxlan"},
	} {
		if r := overlayRequirement(test.nodes); r.Status != test.status ||
			!strings.Contains(r.Detail, test.says) {
			t.Errorf("%s: %s, want %s: %s", r.Status, r.Detail, test.status, test.says)
		}
	}
}
