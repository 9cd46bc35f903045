package checkpoint

import (
	"fmt"
	"os"
	"os/exec"
)

// FindRunc looks for runc in GODWIT_RUNC, in /opt/godwit/bin and in PATH.
func FindRunc() (string, error) {
	if path := os.Getenv("GODWIT_RUNC"); path != "" {
		return path, nil
	}
	const own = "/opt/godwit/bin/runc"
	if _, err := os.Stat(own); err == nil {
		return own, nil
	}
	path, err := exec.LookPath("runc")
	if err != nil {
		return "", fmt.Errorf("find runc: neither GODWIT_RUNC, %s nor PATH has it; \"godwit doctor\" "+
			"tells how to get it: %w", own, err)
	}
	return path, nil
}
