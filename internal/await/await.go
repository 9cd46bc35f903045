// Package await lets tests wait for a condition. It polls, up to a deadline, so that a test depends neither
// on how long something takes nor on a fixed sleep. Only tests import it.
package await

import (
	"testing"
	"time"
)

// Limit is how long a condition may take. It is long, because the machine may be busy.
const Limit = 30 * time.Second

// pause is the time between two looks.
const pause = time.Millisecond

// True waits until a condition is met, and ends the test if it is not met in time. Call it from the
// goroutine of the test.
func True(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !Within(Limit, condition) {
		t.Fatalf("%s: not within %s", what, Limit)
	}
}

// Within waits until a condition is met, and reports whether it was met in time. Any goroutine may call it.
func Within(limit time.Duration, condition func() bool) bool {
	end := time.NewTimer(limit)
	defer end.Stop()
	looks := time.NewTicker(pause)
	defer looks.Stop()
	for !condition() {
		select {
		case <-end.C:
			return condition()
		case <-looks.C:
		}
	}
	return true
}
