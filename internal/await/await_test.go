package await

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// TestWithin: a condition counts from when it is met, and a condition that is never met counts as late at
// the limit.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for after, want := range map[time.Duration]bool{0: true, time.Minute / 2: true, 2 * time.Minute: false} {
			began := time.Now()
			got := Within(time.Minute, func() bool { return time.Since(began) >= after })
			if took := time.Since(began); got != want || took < min(after, time.Minute) ||
				took > min(after, time.Minute)+pause {
				t.Errorf("after %s: %t in %s", after, got, took)
			}
		}
	})
}

// failing is a test that is ended.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		True(t, "at once", func() bool { return true })
		f, ended := &failing{TB: t}, make(chan struct{})
		go func() {
			defer close(ended)
			True(f, "an answer", func() bool { return false })
		}()
		<-ended
		if f.said != "an answer: not within 30s" {
			t.Errorf("said %q", f.said)
		}
	})
}
