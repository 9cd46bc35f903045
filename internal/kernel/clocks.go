package kernel

import (
	"time"
)

const (
	// A held thread runs for this long before it is checked again.
	ShortestRun, LongestRun = 50 * time.Microsecond, 5 * time.Millisecond
)
