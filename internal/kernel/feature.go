package kernel

import "errors"

// ErrUnsupported is wrapped by the errors of Probe when the kernel says that it has not the feature. Any other error
// means that the probe could not find out.
var ErrUnsupported = errors.New("not supported by this kernel")

// Feature is one thing that a kernel may have.
type Feature struct {
	Name    string // for people
	Minimum string // first Linux version that has it, or the configuration option it needs
	probe   func() error
}

// Features lists all features that Godwit uses, in the order in which a person wants to read them.
func Features() []Feature { return nil }

// Probe tries the feature on the running kernel: nil when it is there; an error that wraps ErrUnsupported and names
// the minimum version when it is not; another error when the probe itself failed.
func (f Feature) Probe() error { return errors.ErrUnsupported }
