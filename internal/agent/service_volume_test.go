package agent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/migration"
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
	a.proofs = a.newProver()
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

func TestComing(t *testing.T) {
	definition := engine.Definition{Volumes: []engine.Volume{
		{Name: "data", Path: "/data"}, {Name: "shared", Path: "/s", Stays: true},
		{Kind: engine.Tmpfs, Path: "/fast"},
	}}
	offer := func(volumes ...migration.VolumeMoved) *api.Offer {
		document, err := json.Marshal(volumes)
		if err != nil {
			t.Fatal(err)
		}
		return &api.Offer{TreesBytes: 100, VolumesJson: document}
	}
	c, err := comingOf(definition, offer(migration.VolumeMoved{Volume: "data", Bytes: 30, Files: 3},
		migration.VolumeMoved{Volume: "/fast", Bytes: 20},
		migration.VolumeMoved{Volume: "shared", Bytes: 40}, migration.VolumeMoved{Volume: "none", Bytes: 50}))
	if err != nil || c.rest != 50 || c.memory != 20 || len(c.volumes) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []*api.Offer{
		offer(migration.VolumeMoved{Volume: "data", Bytes: -1}),
		offer(migration.VolumeMoved{Volume: "data", Files: -1}),
		offer(migration.VolumeMoved{Volume: "data", Bytes: 101}),
		offer(migration.VolumeMoved{Volume: "data", Bytes: 60},
			migration.VolumeMoved{Volume: "data", Bytes: 60}), {VolumesJson: []byte("{")},
	} {
		if c, err := comingOf(definition, bad); err == nil {
			t.Errorf("%s: %+v", bad.VolumesJson, c)
		}
	}
}

// TestRoomOfVolumes wants volumes to be compared with the disks that they come to.
func TestRoomOfVolumes(t *testing.T) {
	a := newVolumeAgent(t)
	definition := engine.Definition{Volumes: []engine.Volume{bind("/dev/shm/none/there"),
		{Kind: engine.Tmpfs, Path: "/fast", SizeBytes: 1 << 20}}}
	examine := func(bytes, files, memory int64) int {
		t.Helper()
		coming := comingFiles{volumes: map[string]migration.VolumeMoved{"/x": {Bytes: bytes, Files: files},
			"/fast": {Bytes: memory}}}
		found, err := a.examineDisks(definition, coming, false)
		if err != nil {
			t.Fatal(err)
		}
		return len(append(found, a.examineTmpfs(definition, coming)...))
	}
	for _, one := range []struct {
		bytes, files, memory int64
		want                 int
	}{{1 << 10, 10, 1 << 10, 0}, {1 << 50, 10, 0, 1}, {1 << 10, 1 << 50, 0, 1}, {0, 0, 2 << 20, 1},
		{1 << 50, 0, 2 << 20, 2}} {
		if got := examine(one.bytes, one.files, one.memory); got != one.want {
			t.Errorf("%+v: %d problems", one, got)
		}
	}
	if err := a.syncVolumes(engine.Definition{Volumes: []engine.Volume{bind(t.TempDir()), bind("/none/there"),
		{Name: "none", Path: "/n"}}}); err != nil {
		t.Errorf("sync: %v", err)
	}
	if found := a.ofTheNode("/etc/x"); !found {
		t.Error("a part of /etc can be taken away")
	}
	for path, want := range map[string]bool{"/": true, "/usr": true, "/home": true, "/home/ann": false,
		"/srv/data": false, "/var": true, filepath.Dir(a.config.StateDir): true, "/etcetera": false} {
		if got := a.ofTheNode(path); got != want {
			t.Errorf("%s is a part of the machine: %v", path, got)
		}
	}
}

// TestArrivingDirectories: a container that another node describes gets no directory of the
// machine's, whether something is moved there or not.
func TestArrivingDirectories(t *testing.T) {
	a := newVolumeAgent(t)
	data := filepath.Join(t.TempDir(), "data")
	link := data + "-link"
	if err := errors.Join(os.Mkdir(data, 0o755), os.Symlink("/etc", link)); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		source          string
		readOnly, stays bool
		refused         bool
	}{
		{data, false, true, false},
		{data, true, true, false},
		{data, false, false, false},
		{"/srv/none", false, true, false},
		{"/home/ann/data", false, true, false},
		{"/etc/resolv.conf", true, true, false},
		{"/usr/share/zoneinfo", true, true, false},
		{"/etc/resolv.conf", false, true, true},
		{"/usr/share/zoneinfo", false, true, true},
		{"/etc", true, true, true},
		{"/etc", false, false, true},
		{link, true, true, true},
		{"/", true, true, true},
		{"/dev", false, true, true},
		{"/proc/sys", false, true, true},
		{"/sys/fs/cgroup", true, true, true},
		{"/var/run/docker.sock", true, true, true},
		{"/var/lib/docker/volumes", false, true, true},
		{filepath.Join(a.config.StateDir, "x"), true, true, true},
		{filepath.Dir(a.config.StateDir), true, true, true},
	} {
		v := bind(one.source)
		v.ReadOnly, v.Stays = one.readOnly, one.stays
		found := a.examineArriving(engine.Definition{Volumes: []engine.Volume{v}})
		if len(found) > 0 != one.refused {
			t.Errorf("%+v: %+v", one, found)
		}
	}
}

// TestPatiently: what never ends keeps nobody who does not want it any more.
func TestPatiently(t *testing.T) {
	never, enough := make(chan struct{}), errors.New("enough")
	defer close(never)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	err := patiently(ctx, func() error {
		<-never
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("it returned %v", err)
	}
	if err := patiently(t.Context(), func() error { return enough }); !errors.Is(err, enough) {
		t.Errorf("it returned %v", err)
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
