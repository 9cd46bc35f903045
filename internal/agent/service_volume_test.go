package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/transfer/proof"
)

// newVolumeAgent is a test agent that can be asked for the places of volumes.
func newVolumeAgent(t *testing.T) *Agent {
	t.Helper()
	a := newTestAgent(t)
	var err error
	if a.embedded, err = embedded.New(embedded.Config{StateDir: a.config.StateDir, RunDir: a.config.RunDir,
		Images: a.images}); err != nil {
		t.Fatal(err)
	}
	a.engines = engine.NewSet(a.embedded)
	a.proofs = newProver(a)
	a.volumes = newVolumes(a)
	return a
}

func bind(directory string) engine.Volume {
	return engine.Volume{Kind: engine.Bind, Source: directory, Path: "/x"}
}

// TestProofOfAPeer is asked for tokens where none can be, and for one that is there.
func TestProofOfAPeer(t *testing.T) {
	a := newVolumeAgent(t)
	host := t.TempDir()
	claim, err := shared.NewClaim(host, shared.NewName())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = claim.Remove() })
	entries, err := os.ReadDir(host)
	if err != nil {
		t.Fatal(err)
	}
	name := entries[0].Name()
	for what, one := range map[string]*api.Proof{
		"nothing": {},
		"no name": {Volume: proof.EncodeVolume(bind(host))},
		"outside": {Volume: proof.EncodeVolume(bind(host)),
			File: "../" + filepath.Base(host) + "/" + name},
		"not clean": {Volume: proof.EncodeVolume(bind(host + "/../" + filepath.Base(host))), File: name},
		"relative":  {Volume: proof.EncodeVolume(bind("tmp")), File: name},
		"no kind":   {Volume: &api.Volume{Kind: "x", Source: host, Path: "/x"}, File: name},
		"no volume": {Volume: &api.Volume{Name: "../../" + host, Path: "/x"}, File: name},
		"of the agent": {Volume: proof.EncodeVolume(bind(filepath.Join(a.config.StateDir, "volumes"))),
			File: name},
		"memory": {Volume: &api.Volume{Kind: "tmpfs", Path: host}, File: name},
	} {
		if answer, err := a.proofs.Answer(one); err == nil {
			t.Errorf("%s is answered: %+v", what, answer)
		}
	}
	answer, err := a.proofs.Answer(&api.Proof{Volume: proof.EncodeVolume(bind(host)), File: name})
	if err == nil {
		err = claim.Check(answer)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestEncodeVolume: the other node looks at the same volume, and so asks the same engine where it is.
func TestEncodeVolume(t *testing.T) {
	for _, v := range []engine.Volume{
		{Engine: "docker", Kind: engine.Named, Name: strings.Repeat("0c", 32), Path: "/data", ReadOnly: true},
		{Kind: engine.Bind, Source: "/srv", Path: "/data"}, {Kind: engine.Tmpfs, Path: "/t", SizeBytes: 7},
	} {
		if got := proof.DecodeVolume(proof.EncodeVolume(v)); got != v {
			t.Errorf("%+v becomes %+v", v, got)
		}
	}
}
