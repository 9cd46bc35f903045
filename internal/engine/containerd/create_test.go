package containerd

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/shim"
)

// A fake containerd that has snapshots, and records the IDs of containers.
type pretendedNamespaces struct{ namespaces.NamespacesClient }

func (pretendedNamespaces) Create(context.Context, *namespaces.CreateNamespaceRequest,
	...grpc.CallOption) (*namespaces.CreateNamespaceResponse, error) {
	return nil, status.Error(codes.AlreadyExists, "it is there")
}

type pretendedContainers struct {
	containers.ContainersClient
	ids []string
}

func (p *pretendedContainers) Create(_ context.Context, r *containers.CreateContainerRequest,
	_ ...grpc.CallOption) (*containers.CreateContainerResponse, error) {
	p.ids = append(p.ids, r.GetContainer().GetID())
	return &containers.CreateContainerResponse{}, nil
}

func (p *pretendedContainers) Get(context.Context, *containers.GetContainerRequest,
	...grpc.CallOption) (*containers.GetContainerResponse, error) {
	return nil, status.Error(codes.NotFound, "it is not there")
}

func (p *pretendedContainers) Delete(_ context.Context, r *containers.DeleteContainerRequest,
	_ ...grpc.CallOption) (*emptypb.Empty, error) {
	p.ids = slices.DeleteFunc(p.ids, func(id string) bool { return id == r.GetID() })
	return &emptypb.Empty{}, nil
}

type pretendedSnapshots struct {
	snapshots.SnapshotsClient
	keys []string
}

func (p *pretendedSnapshots) Stat(_ context.Context, r *snapshots.StatSnapshotRequest,
	_ ...grpc.CallOption) (*snapshots.StatSnapshotResponse, error) {
	if !slices.Contains(p.keys, r.GetKey()) {
		return nil, status.Error(codes.NotFound, "it is not there")
	}
	return &snapshots.StatSnapshotResponse{}, nil
}

func (p *pretendedSnapshots) Prepare(_ context.Context, r *snapshots.PrepareSnapshotRequest,
	_ ...grpc.CallOption) (*snapshots.PrepareSnapshotResponse, error) {
	if slices.Contains(p.keys, r.GetKey()) {
		return nil, status.Error(codes.AlreadyExists, "it is there")
	}
	p.keys = append(p.keys, r.GetKey())
	return &snapshots.PrepareSnapshotResponse{}, nil
}

// pretendedVersion is the version of a containerd.
type pretendedVersion string

func (p pretendedVersion) Version(context.Context, *emptypb.Empty,
	...grpc.CallOption) (*version.VersionResponse, error) {
	return &version.VersionResponse{Version: string(p)}, nil
}

// TestOthersSnapshot checks that a snapshot with an arriving container's key is taken for somebody else's,
// and that nothing is left that would remove it.
func TestOthersSnapshot(t *testing.T) {
	program := filepath.Join(t.TempDir(), "godwit")
	for _, name := range []string{program, filepath.Join(filepath.Dir(program), shim.Program)} {
		if err := os.WriteFile(name, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	x := extra{Namespace: "own", ID: "web", Spec: plain(), Chain: "sha256:" + strings.Repeat("2b", 32),
		Stdio: []string{"", "", ""}}
	x.Spec.Linux.CgroupsPath = "/own/web"
	d := engine.Definition{EngineName: Name, Namespace: "own", ID: strings.Repeat("1a", 32), Name: "own.web",
		Image: "docker.io/library/web:1"}
	var err error
	if d.Engine, err = json.Marshal(x); err != nil {
		t.Fatal(err)
	}
	made, kept := &pretendedContainers{}, &pretendedSnapshots{keys: []string{x.Chain}}
	a := &adapter{executable: program, namespaces: pretendedNamespaces{}, containers: made, snapshots: kept,
		version: pretendedVersion(oldest)}
	for _, others := range []bool{false, true} { // the second time, its own snapshot exists
		found, err := a.Reserve(t.Context(), d)
		if err != nil || len(found) > 0 != others || others &&
			!strings.HasPrefix(found[0].What, "snapshot web") {
			t.Errorf("somebody else has it: %v; %+v, %v", others, found, err)
		}
		engineID, err := a.Create(t.Context(), d, "label", "value")
		if (err != nil) != others || (engineID == "") != others {
			t.Errorf("somebody else has it: %v; made %q: %v", others, engineID, err)
		}
		if (len(made.ids) == 0) != others {
			t.Errorf("somebody else has it: %v; containers %q", others, made.ids)
		}
		made.ids = nil
	}
}

// TestRestoreDirs checks that containers of different namespaces share neither restore directories nor
// logs.
func TestRestoreDirs(t *testing.T) {
	a := &adapter{logFiles: logFiles{"/logs"}}
	names := []string{"default", "default.a", "a", "a.b", "b", "default.a.b"}
	dirs, logs := map[string]bool{}, map[string]bool{}
	for _, namespace := range names {
		for _, id := range names {
			dir := a.RestoreDir(engineID(namespace, id))
			if _, err := shim.At("/run", dir); err != nil {
				t.Error(err)
			}
			dirs[dir], logs[a.logFiles.path(engineID(namespace, id))] = true, true
		}
	}
	if want := len(names) * len(names); len(dirs) != want || len(logs) != want {
		t.Errorf("%d restore directories, %d logs, want %d", len(dirs), len(logs), want)
	}
	if _, err := shim.At("/run",
		a.RestoreDir(engineID(strings.Repeat("n", 40), strings.Repeat("i", 76)))); err != nil {
		t.Error(err)
	}
	if namePattern.MatchString("a..b") || namePattern.MatchString("a.") {
		t.Error("names may have two dots in a row")
	}
}
