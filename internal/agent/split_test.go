package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migration"
)

// TestSplitOnRequest: what bounds only the automatic choice does not bind a user, but what the user
// or the node has said does.
func TestSplitOnRequest(t *testing.T) {
	for _, one := range []struct {
		name     string
		use      migration.PostCopyUse
		settings migration.Settings
		may      bool
	}{
		{"default", migration.PostCopyAuto, migration.Settings{}, true},
		{"on request", migration.PostCopyOnRequest, migration.Settings{}, true},
		{"a bound of the user's own", migration.PostCopyAuto, migration.Settings{MaxSplit: time.Second},
			false},
		{"never", migration.PostCopyNever, migration.Settings{}, false},
	} {
		s := forecast.NewSplit(one.use, one.settings, &forecast.Auto{}, nil)
		s.Left(time.Minute, 0)
		if s.Refuses() == "" {
			t.Errorf("%s: the automatic choice may need both nodes for a minute", one.name)
		}
		values, hybrid := settings{}, string(migration.TurnHybrid)
		_, err := values.change(&api.SetRequest{OnNoConvergence: &hybrid}, s)
		if (err == nil) != one.may || err != nil && !errors.Is(err, errRefused) {
			t.Errorf("%s: changed to hybrid: %v, want it allowed: %v", one.name, err, one.may)
		}
		if turned := values.Get().OnNoConvergence == migration.TurnHybrid; turned != one.may ||
			(s.Refuses() == "") != one.may {
			t.Errorf("%s: turned %v, and now refused by %q", one.name, turned, s.Refuses())
		}
	}
}
