package engine

import (
	"fmt"
	"strconv"
	"strings"
)

// RestartPolicy says when the node that ran a container last restarts it after it ended.
type RestartPolicy struct {
	When RestartWhen
	Most int // consecutive failures after which it stays ended; 0: no limit. With RestartOnFailure only.
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

// ParseRestartPolicy parses a policy as users write it; "" is RestartNo.
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
