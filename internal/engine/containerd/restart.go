package containerd

import (
	"regexp"
	"strings"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd/nerdctl"
)

const (
	restartPrefix = "containerd.io/restart."
	// where the shim writes when containerd restarts the container; it may be a program
	restartLog = restartPrefix + "loguri"
)

// restartLabels returns the labels that make containerd restart a container (runtime/restart/monitor).
func restartLabels(labels map[string]string) map[string]string {
	found := map[string]string{}
	for name, value := range labels {
		if strings.HasPrefix(name, restartPrefix) {
			found[name] = value
		}
	}
	return found
}

// restartValues are the labels of these that mean the same on every node, and their permitted values.
var restartValues = map[string]*regexp.Regexp{
	restartPrefix +
		"status": regexp.MustCompile(`^(running|stopped|created|paused|pausing|unknown)$`),
	restartPrefix +
		"policy": regexp.MustCompile(`^(always|unless-stopped|no|on-failure(:[0-9]{1,9})?)$`),
	restartPrefix + "count":              regexp.MustCompile(`^[0-9]{1,9}$`),
	restartPrefix + "explicitly-stopped": regexp.MustCompile(`^(true|false|1|0)$`),
}

// restartObstacles lists labels that would make containerd, when it restarts a container, write to
// something other than a log, or run programs of the node.
func restartObstacles(labels map[string]string) []engine.Problem {
	p := problems{}
	logged := func(value string) bool {
		if nerdctl.Has(labels) {
			return value == nerdctl.Log(labels)
		}
		return strings.HasPrefix(value, "file:///")
	}
	for name, value := range restartLabels(labels) {
		known, is := restartValues[name]
		p.add(!(is && known.MatchString(value) || name == restartLog && logged(value)),
			"label "+name+"="+value, "its meaning to containerd is not known to move", without)
	}
	return p
}

// takenRestart returns the restart labels of an arriving container: it writes into its log here, whatever
// it did elsewhere.
func takenRestart(labels map[string]string, log string) map[string]string {
	taken := map[string]string{}
	for name, value := range labels {
		if known, is := restartValues[name]; is && known.MatchString(value) {
			taken[name] = value
		}
	}
	if len(taken) > 0 {
		taken[restartLog] = log
	}
	return taken
}
