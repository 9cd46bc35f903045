package admission

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/policy"
	"github.com/godwit/godwit/internal/reserve"
)

const migrationID = "0123456789abcdef"

var errFailed = errors.New("failed")

// node is all that Admission asks about a node.
type node struct {
	engine.Engine // that of the container
	engine.Images // that it has; nil: it has none
	keepsImages   bool
	lookup        error
	elsewhere     engine.Engine
	found         []engine.Problem // by Reserve
	foundAnew     []engine.Problem // by ReserveAnew
	here          []engine.Container
	unknown       error // who is here
	home          bool
	lessee        string // of every address
	places        []network.BridgedPlace
	connections   []network.Connection
	unconnected   error
	residual      int64
	yielded       int64
	images        []string // and layers
	lack          engine.Lack
	own, others   int64 // kept files
	refused       []migration.Problem
	noHome        error
}

func (n *node) Lookup(engine.Definition) (engine.Engine, error) { return n, n.lookup }

func (n *node) Elsewhere(context.Context, engine.Definition) (engine.Engine, error) {
	return n.elsewhere, n.unknown
}

func (n *node) Inspect(context.Context, string) (engine.Container, error) {
	if n.unknown != nil {
		return engine.Container{}, n.unknown
	}
	return n.here[0], nil
}

func (n *node) ImagesOf(string) (engine.Images, error) {
	if n.keepsImages {
		return n, n.lookup
	}
	return nil, n.lookup
}

func (n *node) VolumePath(v engine.Volume) (string, error) { return v.Source, nil }

func (n *node) Name() string { return "docker" }

func (n *node) Reserve(context.Context, engine.Definition) ([]engine.Problem, error) {
	return n.found, n.unknown
}

func (n *node) ReserveAnew(context.Context, engine.Definition) ([]engine.Problem, error) {
	return n.foundAnew, n.unknown
}

func (n *node) Lacks(context.Context, engine.Image) (engine.Lack, error) { return n.lack, n.unknown }

func (n *node) Addressed(context.Context) ([]engine.Container, error) { return n.here, n.unknown }

func (n *node) AtHome(netip.Addr) bool { return n.home }

func (n *node) Of(netip.Addr) string { return n.lessee }

func (n *node) BridgedPlaces() []network.BridgedPlace { return n.places }

func (n *node) Established(string) ([]network.Connection, error) { return n.connections, n.unconnected }

func (n *node) Home(netip.Addr) (int, error) { return 1, n.noHome }

func (n *node) Has(id string) bool { return slices.Contains(n.images, id) }

func (n *node) HasLayer(diffID string) bool { return slices.Contains(n.images, diffID) }

func (n *node) OnNode(diffID string) bool { return slices.Contains(n.images, diffID) }

func (n *node) Missing(layers []*api.Layer) []*api.Layer { return layers }

func (n *node) ExamineArriving(engine.Definition) []migration.Problem { return n.refused }

// residuals are memory that yields.
type residuals struct{ *node }

func (r residuals) Bytes() int64 { return r.residual }

func (r residuals) Yield(bytes int64) { r.yielded += bytes }

// keptFiles are files that yield.
type keptFiles struct{ *node }

func (k keptFiles) Bytes(string) (own, others int64) { return k.own, k.others }

func (k keptFiles) Yield(_ string, bytes int64) { k.yielded += bytes }

func newNode(t *testing.T) *Admission {
	t.Helper()
	return newNodeWith(t, &node{})
}

// newNodeWith is the Admission of node b, which has 64 GiB of memory.
func newNodeWith(t *testing.T, n *node) *Admission {
	t.Helper()
	return New(Config{
		Rules: Rules{Node: "b"}, StateDir: t.TempDir(), Engines: n, Containers: n, Leases: n, Network: n,
		Images: n, Layers: n, Kept: keptFiles{n}, Directories: n,
		Memory: Memory{
			Available:    func() (int64, error) { return 64 << 30, nil },
			Reservations: reserve.New(), Residuals: residuals{n},
			Staged: func(string) (int64, []string) { return 0, nil },
		},
		Waiting:  func(engine.Definition) []migration.Problem { return nil },
		Platform: func(migration.Mode) (migration.Platform, error) { return migration.Platform{}, nil },
		Log:      slog.New(slog.DiscardHandler),
	})
}

func whats(problems []migration.Problem) string {
	var all []string
	for _, p := range problems {
		all = append(all, p.What)
	}
	return strings.Join(all, ", ")
}

// TestExamine: what cannot be asked hides what it would have said, and everything else is told at once.
func TestExamine(t *testing.T) {
	address := netip.MustParseAddr("10.201.0.5")
	pooled := engine.Definition{ID: strings.Repeat("a", 64), Name: "web",
		Network: engine.Network{Address: address}}
	problem := engine.Problem{What: "name web", Why: "it is taken"}
	waiting := []migration.Problem{{What: "engine docker"}}
	for _, one := range []struct {
		name    string
		node    node
		mode    migration.Mode
		memory  int64
		trees   int64
		waiting []migration.Problem
		want    string
	}{
		{name: "nothing", node: node{home: true, lessee: pooled.ID}},
		{name: "a migration waits", waiting: waiting, node: node{lookup: errFailed}, want: "engine docker"},
		{name: "an engine that is not known", node: node{lookup: engine.ErrNoEngine}, want: "engine "},
		{name: "another engine has it", node: node{elsewhere: &node{}, found: []engine.Problem{problem}},
			want: "container aaaaaaaaaaaa"},
		{name: "its engine refuses", node: node{found: []engine.Problem{problem}}, want: "name web"},
		{name: "its engine refuses in mode restart", mode: migration.Restart,
			node: node{foundAnew: []engine.Problem{problem}}, want: "name web"},
		{name: "another cluster", node: node{noHome: errFailed}, want: "address 10.201.0.5"},
		{name: "the address is taken", want: "address 10.201.0.5", node: node{here: []engine.Container{
			{Definition: engine.Definition{ID: "other", Name: "db", Network: pooled.Network}},
		}}},
		{name: "the address is another's", node: node{home: true, lessee: "other"},
			want: "address 10.201.0.5"},
		{name: "a directory, memory and the disk", want: "name web, bind /etc, memory of b, disk of b",
			node:   node{refused: []migration.Problem{{What: "bind /etc"}}, found: []engine.Problem{problem}},
			memory: 1 << 40, trees: 1 << 60},
	} {
		t.Run(one.name, func(t *testing.T) {
			a := newNodeWith(t, &one.node)
			a.waiting = func(engine.Definition) []migration.Problem { return one.waiting }
			problems, err := a.Examine(t.Context(), "a", pooled, &api.Offer{Mode: string(one.mode),
				PlatformJson: []byte("{}"), MemoryBytes: one.memory, TreesBytes: one.trees})
			if err != nil || whats(problems) != one.want {
				t.Errorf("%+v, %v; want %s", problems, err, one.want)
			}
		})
	}
}

// TestExamineFails: what cannot be found out is no permission.
func TestExamineFails(t *testing.T) {
	for what, change := range map[string]func(*Admission, *node, *api.Offer){
		"platform":   func(_ *Admission, _ *node, offer *api.Offer) { offer.PlatformJson = nil },
		"volumes":    func(_ *Admission, _ *node, offer *api.Offer) { offer.VolumesJson = []byte("{") },
		"engine":     func(_ *Admission, n *node, _ *api.Offer) { n.lookup = errFailed },
		"containers": func(_ *Admission, n *node, _ *api.Offer) { n.unknown = errFailed },
		"our platform": func(a *Admission, _ *node, _ *api.Offer) {
			a.platform = func(migration.Mode) (p migration.Platform, err error) { return p, errFailed }
		},
	} {
		n, offer := &node{}, &api.Offer{PlatformJson: []byte("{}")}
		a := newNodeWith(t, n)
		change(a, n, offer)
		if _, err := a.Examine(t.Context(), "a", engine.Definition{}, offer); !errors.Is(err, errFailed) &&
			!errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestForwarded: an address on a bridge to which this node still forwards packets is not free.
func TestForwarded(t *testing.T) {
	address := netip.MustParseAddr("172.17.0.2")
	comes := engine.Definition{ID: "web", EngineName: "docker",
		Network: engine.Network{Address: address, Bridge: "bridge"}}
	if !comes.Network.OnBridge() {
		t.Fatal("it is not on a bridge")
	}
	for _, one := range []struct {
		place   network.BridgedPlace
		refused bool
	}{
		{network.BridgedPlace{Container: "other", Address: address, Via: "c"}, true},
		{network.BridgedPlace{Container: "web", Address: address, Via: "c"}, false},
		{network.BridgedPlace{Container: "other", Address: address, Here: true}, false},
		{network.BridgedPlace{Container: "other", Address: address.Next(), Via: "c"}, false},
	} {
		a := newNodeWith(t, &node{places: []network.BridgedPlace{one.place}})
		found, err := a.examineAddress(t.Context(), comes)
		if err != nil || len(found) > 0 != one.refused {
			t.Errorf("%+v: %+v, %v", one.place, found, err)
		}
	}
}

// TestUnknownIsNotFree: as long as an engine does not answer, nobody takes the address of its
// containers for free.
func TestUnknownIsNotFree(t *testing.T) {
	address := netip.MustParseAddr("10.201.0.5")
	n := &node{here: []engine.Container{{Definition: engine.Definition{EngineName: "docker", ID: "web",
		Network: engine.Network{Address: address}}}}}
	a := newNodeWith(t, n)
	if have, err := a.Holder(t.Context(), address); err != nil || have.ID != "web" {
		t.Errorf("%+v, %v", have, err)
	}
	for _, free := range []netip.Addr{address.Next(), {}} {
		if have, err := a.Holder(t.Context(), free); err != nil || have.ID != "" {
			t.Errorf("%s: %+v, %v", free, have, err)
		}
	}
	n.unknown = errFailed
	if _, err := a.Holder(t.Context(), address); !errors.Is(err, errFailed) {
		t.Errorf("%v: it is taken for free", err)
	}
}

// TestMissing: a source sends what neither the node nor the engine has.
func TestMissing(t *testing.T) {
	definition := engine.Definition{ImageID: "image", Layers: []string{"one", "two"}}
	problems := []migration.Problem{{What: "engine docker"}}
	for _, one := range []struct {
		name     string
		node     node
		problems []migration.Problem
		image    bool
		layers   []string
		failed   bool
	}{
		{name: "everything", image: true, layers: []string{"one", "two"}},
		{name: "a layer", node: node{images: []string{"image", "one"}}, layers: []string{"two"}},
		{name: "for an engine", node: node{keepsImages: true, images: []string{"two"},
			lack: engine.Lack{Image: true, Layers: definition.Layers}}, image: true, layers: []string{"one"}},
		{name: "an engine that refuses", node: node{keepsImages: true, unknown: errFailed},
			problems: problems},
		{name: "an engine that is not there", node: node{lookup: errFailed}, problems: problems},
		{name: "an engine that fails", node: node{keepsImages: true, unknown: errFailed}, failed: true},
		{name: "no engine", node: node{lookup: errFailed}, failed: true},
	} {
		got, err := newNodeWith(t, &one.node).Missing(t.Context(), definition, one.problems)
		if (err != nil) != one.failed || got.GetMissingImage() != one.image ||
			!slices.Equal(got.GetMissingLayers(), one.layers) {
			t.Errorf("%s: %+v, %v", one.name, got, err)
		}
	}
}

// TestMemoryOf: a container's memory includes what waits in its connections. Only one that runs has any.
func TestMemoryOf(t *testing.T) {
	n := &node{here: []engine.Container{{}}}
	a := newNodeWith(t, n)
	n.connections = []network.Connection{{UnreadBytes: 5, UnackedBytes: 7}, {UnreadBytes: 1}}
	if got := a.queuedIn("web"); got != 13 {
		t.Errorf("%d bytes wait in its connections", got)
	}
	n.connections, n.unconnected = nil, errFailed
	if got := a.queuedIn("web"); got != 0 {
		t.Errorf("%d bytes wait where nobody knows", got)
	}
	if _, err := a.MemoryOf(t.Context(), "web"); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("of a container that does not run: %v", err)
	}
	n.unknown = engine.ErrNotFound
	if _, err := a.MemoryOf(t.Context(), "web"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("of a container that is not there: %v", err)
	}
}

// TestPolicyRefusesOffers: the policy is asked before anything else is looked at, by the name of
// the node whose certificate the offer came with.
func TestPolicyRefusesOffers(t *testing.T) {
	a := newNode(t)
	accept, directories := []string{"c"}, []string{"/srv"}
	a.rules.Policy = policy.Policy{AcceptFrom: &accept, HostDirectories: &directories, MaxMemoryBytes: 10}
	definition := engine.Definition{Volumes: []engine.Volume{
		{Kind: engine.Bind, Source: "/srv/../etc", Path: "/x"}, {Kind: engine.Named, Name: "v", Path: "/y"},
	}}
	problems, err := a.Examine(t.Context(), "a", definition, &api.Offer{MemoryBytes: 11, Mode: "cold"})
	if err != nil {
		t.Fatal(err)
	}
	var whats []string
	for _, p := range problems {
		whats = append(whats, p.What)
		if !strings.Contains(p.Why, "policy of node b") || p.Remedy == "" {
			t.Errorf("%+v does not say whose policy it is, or what to do", p)
		}
	}
	if got := strings.Join(whats, ", "); got != "node a, host directory /etc, memory" {
		t.Errorf("refused: %s", got)
	}
}
