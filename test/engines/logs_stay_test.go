package engines

import (
	"context"
	"strings"
	"testing"
)

// TestPodmanLogsStay moves a container whose log is in the journal, Podman's default on Debian: the dry run
// and the report say that the log stays, but not for a container whose log moves.
func TestPodmanLogsStay(t *testing.T) {
	const says = "what Podman has logged of the container stays on the source: log driver journald"
	name := "logsstay"
	for _, node := range nodes() {
		startJournal(t, node)
	}
	t.Cleanup(func() {
		for _, node := range nodes() {
			// it is on one of them, or on none
			_, _ = world.lab.Exec(context.Background(), node, inPodman.remove(name)...)
		}
	})
	for driver, want := range map[string]bool{"journald": true, "k8s-file": false} {
		in(t, "a", "podman", "run", "--detach", "--name", name, "--network", "none", "--log-driver", driver,
			image, "/bin/sh", "-c", count)
		if said := in(t, "a", "godwit", "migrate", "--dry-run", "--mode", "cold", "podman:"+name,
			"b"); strings.Contains(said, says) != want {
			t.Errorf("%s: the dry run says\n%s", driver, said)
		}
		if said := in(t, "a", "godwit", "migrate", "--mode", "cold", "podman:"+name,
			"b"); strings.Contains(said, says) != want {
			t.Errorf("%s: the report says\n%s", driver, said)
		}
		in(t, "b", inPodman.remove(name)...)
	}
}

// startJournal starts the journal of a node, which has no systemd.
func startJournal(t *testing.T, node string) {
	t.Helper()
	pid := in(t, node, "sh", "-c", "mkdir -p /run/systemd/journal; setsid "+
		"/usr/lib/systemd/systemd-journald >/run/journald.log 2>&1 & echo $!")
	t.Cleanup(func() { _, _ = world.lab.Exec(context.Background(), node, "kill", pid) })
	eventually(t, "the journal of "+node,
		func() bool { return tried(t, node, "test", "-S", "/run/systemd/journal/socket") == nil })
}
