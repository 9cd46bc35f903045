package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
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
		s := newSplit(one.use, one.settings, &autoMode{}, nil)
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
