package vet

import (
	"bytes"
	"os"
)

// enforced reports whether the security module of a container's profile or label works on this node.
func enforced(a *Agreed) bool {
	if a.Profile != "" {
		data, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
		return err == nil && bytes.HasPrefix(data, []byte("Y"))
	}
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}
