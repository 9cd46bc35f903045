package engine

import (
	"fmt"
	"strconv"
	"strings"
)

// RestartPolicy says when a container that has ended is started again, by the node where it was last.
type RestartPolicy struct {
	When RestartWhen
	Most int // failures in a row after which it stays ended; 0: it never does. With RestartOnFailure only.
}

// RestartWhen is the name of a policy.
type RestartWhen string

// The policies, in Docker's words.
const (
	RestartNo            RestartWhen = "no"
	RestartOnFailure     RestartWhen = "on-failure"
	RestartAlways        RestartWhen = "always"
	RestartUnlessStopped RestartWhen = "unless-stopped"
)

// maxRestarts bounds RestartPolicy.Most.
const maxRestarts = 1 << 20

// ParseRestartPolicy reads a policy as users write it; "" is RestartNo.
func ParseRestartPolicy(text string) (RestartPolicy, error) {
	name, most, counted := strings.Cut(text, ":")
	policy := RestartPolicy{When: RestartWhen(name)}
	wrong := fmt.Errorf("restart policy %.40q: want no, on-failure, on-failure:N, always or unless-stopped",
		text)
	switch policy.When {
	case "":
		policy.When = RestartNo
	case RestartNo, RestartOnFailure, RestartAlways, RestartUnlessStopped:
	default:
		return policy, wrong
	}
	if !counted {
		return policy, nil
	}
	n, err := strconv.Atoi(most)
	if err != nil || policy.When != RestartOnFailure || n < 1 || n > maxRestarts || strconv.Itoa(n) != most {
		return policy, wrong
	}
	policy.Most = n
	return policy, nil
}
