package agent

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/migration"
)

// otherEngine is an engine with one container; nothing else is asked of it.
type otherEngine struct {
	engine.Engine
	has  engine.Definition
	down error
}

func (o *otherEngine) Name() string { return "docker" }

func (*otherEngine) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (o *otherEngine) List(context.Context) ([]engine.Container, error) {
	if o.down != nil {
		return nil, o.down
	}
	return []engine.Container{{Definition: o.has}}, nil
}

func (o *otherEngine) Inspect(_ context.Context, ref string) (engine.Container, error) {
	if o.down != nil {
		return engine.Container{}, o.down
	}
	if ref != o.has.ID {
		return engine.Container{}, engine.ErrNotFound
	}
	return engine.Container{Definition: o.has, State: engine.Running}, nil
}

// answered is a session that keeps what is answered.
type answered struct {
	grpc.BidiStreamingServer[api.Envelope, api.Envelope]
	ctx   context.Context
	offer *api.Offer
	sent  *api.Envelope
}

func (a *answered) Recv() (*api.Envelope, error) {
	return &api.Envelope{Offer: a.offer, Message: &api.Message{}}, nil
}

func (a *answered) Context() context.Context { return a.ctx }

func (a *answered) Send(envelope *api.Envelope) error {
	a.sent = envelope
	return nil
}

// TestOffersChangeNothing: a peer that names the id of a container that is here, as one of another
// engine, gets a problem for an answer, and whose the container is stays what it is.
func TestOffersChangeNothing(t *testing.T) {
	a := newVolumeAgent(t)
	here := engine.Definition{EngineName: "docker", ID: strings.Repeat("a", 64), Name: "web"}
	other := &otherEngine{has: here}
	a.engines = engine.NewSet(a.embedded, other)
	a.admission = newAdmission(a)
	ask := func(definition engine.Definition) ([]migration.Problem, error) {
		described, err := json.Marshal(definition)
		if err != nil {
			t.Fatal(err)
		}
		stream := &answered{ctx: callFrom(t, "a"), offer: &api.Offer{
			Protocol: uint32(compat.Ours().Newest), Mode: string(migration.Restart), DryRun: true,
			DefinitionJson: described, PlatformJson: []byte("{}"),
		}}
		if err := newPeerService(a).Session(stream); err != nil {
			return nil, err
		}
		message, err := envelopes.Decode(stream.sent.Message)
		return message.Problems, err
	}
	problems, err := ask(engine.Definition{ID: here.ID, Name: "db"})
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Why, "docker") {
		t.Errorf("%+v, %v", problems, err)
	}
	if a.engines.EngineFor(here) != other {
		t.Error("another engine is asked for the container now")
	}
	if one, err := a.engines.Inspect(t.Context(), here.ID); err != nil || one.Definition.Name != "web" {
		t.Errorf("%+v, %v", one, err)
	}
	for _, wrong := range []engine.Definition{{ID: "../x", Name: "db"},
		{ID: strings.Repeat("b", 64), Name: "a b"}, {Name: "db"}} {
		if _, err := ask(wrong); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%.10s %q: %v", wrong.ID, wrong.Name, err)
		}
	}
	for _, name := range []string{"lxc", "embedded"} {
		problems, err := ask(engine.Definition{EngineName: name, ID: strings.Repeat("c", 64), Name: "db"})
		if err != nil || len(problems) != 1 || problems[0].What != "engine "+name {
			t.Errorf("%s: %+v, %v", name, problems, err)
		}
	}
}
