package docker

import (
	"strings"
	"testing"
)

func TestIsShimOf(t *testing.T) {
	const runcShim, socket = "/usr/bin/containerd-shim-runc-v2", "/run/containerd/containerd.sock"
	engineID := strings.Repeat("5f", 32)
	shim := func(args ...string) string { return strings.Join(args, "\x00") + "\x00" }
	for command, want := range map[string]bool{
		shim(runcShim, "-namespace", "moby", "-id", engineID, "-address", socket):                   true,
		shim(runcShim, "-namespace", "default", "-id", engineID, "-address", socket):                false,
		shim(runcShim, "-namespace", "moby", "-id", engineID[1:]+"0", "-address", socket):           false,
		shim(runcShim, "-namespace", "moby", "-id"):                                                 false,
		shim("sh", "-c", "containerd-shim-runc-v2 -namespace moby -id "+engineID):                   false,
		shim("/usr/bin/vi", "-namespace", "moby", "-id", engineID):                                  false,
		shim(runcShim, "-namespace", "moby", "-address", socket, "-id", engineID, "start"):          false,
		shim(runcShim, "-namespace", "moby", "-id", engineID, "-bundle", "/run/docker/x", "delete"): false,
		"": false,
	} {
		if got := isShimOf(command, engineID); got != want {
			t.Errorf("%q: %t", command, got)
		}
	}
	if isShimOf(shim("containerd-shim-runc-v2", "-namespace", "moby", "-id", ""), "") {
		t.Error("a shim without a container is one of a container without an id")
	}
}
