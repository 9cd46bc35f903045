package rounds

import (
	"testing"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// TestSplitIsMeasured: what was predicted counts until the link, and then the rounds, say otherwise.
func TestSplitIsMeasured(t *testing.T) {
	s := NewSplit(migration.PostCopyAuto, migration.Settings{}, true, 8*time.Second, 100e6)
	may := func(when string, want bool) {
		t.Helper()
		if why := s.Refuses(); (why == "") != want {
			t.Errorf("%s: %q, want it allowed: %v", when, why, want)
		}
	}
	may("8 s are predicted", true)
	s.Carries(50e6)
	may("the link carries half of that", false)
	s.Carries(100e6)
	may("the link carries it after all", true)
	s.Left(30*time.Second, time.Millisecond)
	may("the rounds leave 30 s", false)
	s.Carries(1e9)
	may("the rounds have said it already", false)
	s.Left(time.Second, time.Millisecond)
	may("the rounds leave a second", true)
}
