package memory

import (
	"fmt"

	"github.com/godwit/godwit/internal/kernel"
)

// Tracking is a way to find out which pages a process has written.
type Tracking string

// Ways of tracking, the best first. If one does not work with a process, the next is used.
const (
	// WriteProtect is asynchronous write-protection by a userfaultfd that is opened in the process
	// (Linux 6.7; 6.10 on arm64).
	WriteProtect Tracking = "write-protect"
	// SoftDirty uses the kernel's soft-dirty records. Nothing is done in the process. A page that was
	// written once is read in each round until it pays to start again. It takes 6 MiB for each GiB, and
	// does not work together with another user of the records.
	SoftDirty Tracking = "soft-dirty"
	// Hashing needs nothing from the kernel: each round reads and compares all pages.
	Hashing Tracking = "hashing"
)

// BestTracking returns the best way that this machine's kernel supports, and why a better one is
// impossible; nil if there is nothing better.
func BestTracking() (Tracking, error) {
	protect := kernel.ProbeWriteProtect()
	if protect == nil {
		return WriteProtect, nil
	}
	if err := kernel.ProbeSoftDirty(); err != nil {
		return Hashing, fmt.Errorf("%w; %w", protect, err)
	}
	return SoftDirty, protect
}
