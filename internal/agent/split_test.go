package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// TestSplitIsMeasured: what was predicted counts until the link, and then the rounds, say otherwise.
func TestSplitIsMeasured(t *testing.T) {
	s := newSplit(migration.PostCopyAuto, migration.Settings{}, &autoMode{},
		&foreseenSplit{whole: 8 * time.Second, bits: 100e6})
	may := func(when string, want bool) {
		t.Helper()
		if why := s.refuses(); (why == "") != want {
			t.Errorf("%s: %q, want it allowed: %v", when, why, want)
		}
	}
	may("8 s are predicted", true)
	s.carries(50e6)
	may("the link carries half of that", false)
	s.carries(100e6)
	may("the link carries it after all", true)
	s.left(30*time.Second, time.Millisecond)
	may("the rounds leave 30 s", false)
	s.carries(1e9)
	may("the rounds have said it already", false)
	s.left(time.Second, time.Millisecond)
	may("the rounds leave a second", true)
}

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
		s := newSplit(one.use, one.settings, &autoMode{}, nil)
		s.left(time.Minute, 0)
		if s.refuses() == "" {
			t.Errorf("%s: the automatic choice may need both nodes for a minute", one.name)
		}
		values, hybrid := settings{}, string(migration.TurnHybrid)
		_, err := values.change(&api.SetRequest{OnNoConvergence: &hybrid}, s)
		if (err == nil) != one.may || err != nil && !errors.Is(err, errRefused) {
			t.Errorf("%s: changed to hybrid: %v, want it allowed: %v", one.name, err, one.may)
		}
		if turned := values.get().OnNoConvergence == migration.TurnHybrid; turned != one.may ||
			(s.refuses() == "") != one.may {
			t.Errorf("%s: turned %v, and now refused by %q", one.name, turned, s.refuses())
		}
	}
}

// TestDemandsOfSplit tells what is refused before anything is predicted.
func TestDemandsOfSplit(t *testing.T) {
	for _, one := range []struct {
		name    string
		request *api.MigrateRequest
		use     migration.PostCopyUse
		want    error
	}{
		{"post-copy on request", &api.MigrateRequest{Mode: "post-copy"}, migration.PostCopyOnRequest, nil},
		{"post-copy never", &api.MigrateRequest{Mode: "post-copy"}, migration.PostCopyNever, errRefused},
		{"hybrid never", &api.MigrateRequest{Mode: "hybrid"}, migration.PostCopyNever, errRefused},
		{"rounds that turn never", &api.MigrateRequest{Mode: "pre-copy", OnNoConvergence: "hybrid"},
			migration.PostCopyNever, errRefused},
		{"pre-copy", &api.MigrateRequest{Mode: "pre-copy"}, migration.PostCopyNever, nil},
		{"auto", &api.MigrateRequest{Mode: "auto"}, migration.PostCopyNever, nil},
		{"both", &api.MigrateRequest{Mode: "auto", NoPostCopy: true, MaxSplitSeconds: 3},
			migration.PostCopyAuto, errInvalid},
	} {
		settings := settingsFor(one.request, migration.Mode(one.request.Mode))
		_, err := demandsOf(one.request, settings, one.use, nil)
		if !errors.Is(err, one.want) || one.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", one.name, err, one.want)
		}
	}
}
