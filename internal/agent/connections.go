package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/cluster/measure"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/node/data"
	"github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/wire/stream"
)

// newDataServer hands data connections to the migrations, copies and layers that they belong to.
func newDataServer(a *Agent) *data.Server {
	return data.NewServer(map[string]data.Purpose{
		measure.Purpose: data.AcceptFunc(func(stream.Hello, string, *stream.Options) (data.Serve, error) {
			return measure.Answer, nil
		}),
		purposeStage:         data.AcceptFunc(a.acceptStage),
		purposeLayers:        data.AcceptFunc(a.acceptLayers),
		purposeMigration:     arrivalData{a, (*target).serveState},
		precopy.PurposePages: arrivalData{a, (*target).servePages},
		files.Purpose:        arrivalData{a, (*target).serveFiles},
		push.PurposeUrgent:   arrivalData{a, (*target).servePush},
		push.PurposePush:     arrivalData{a, (*target).servePush},
	}, a.streamOptions(), a.log)
}

func (a *Agent) acceptStage(hello stream.Hello, from string, _ *stream.Options) (data.Serve, error) {
	return func(ctx context.Context, session *stream.Session) error {
		return a.stagedCopies.Serve(ctx, session, from, hello.Migration)
	}, migration.CheckID(hello.Migration)
}

func (a *Agent) acceptLayers(hello stream.Hello, from string, options *stream.Options) (data.Serve, error) {
	if err := a.rules().MayRead(from); err != nil {
		return nil, err
	}
	outgoing, err := a.layers.Transfer(hello.Migration, from)
	options.Limiter = outgoing.Shares()
	return func(ctx context.Context, session *stream.Session) error {
		return a.layers.Serve(ctx, session, outgoing, from)
	}, err
}

// arrivalData are data connections of migrations to this node.
type arrivalData struct {
	agent *Agent
	serve func(work *target, ctx context.Context, hello stream.Hello, session *stream.Session) error
}

// Accept implements data.Purpose: it finds the migration that a data connection is for.
func (d arrivalData) Accept(hello stream.Hello, from string, _ *stream.Options) (data.Serve, error) {
	m, err := d.agent.moves.Find(hello.Migration)
	if err != nil {
		return nil, err
	}
	work, ok := m.Work().(*target)
	late := hello.Purpose == push.PurposeUrgent || hello.Purpose == push.PurposePush
	// a source may not know that an operator has ended it here
	over := m.Ended() && (!late || m.Record().Result != migration.Moved)
	if !ok || m.Tracker.Spec.Source != from || over {
		return nil, fmt.Errorf("migration %.40q does not bring anything from %s here", hello.Migration, from)
	}
	return func(ctx context.Context, session *stream.Session) error {
		return d.serve(work, ctx, hello, session)
	}, nil
}

func (t *target) servePages(ctx context.Context, _ stream.Hello, session *stream.Session) error {
	return t.memory.Attach(ctx, session)
}

func (t *target) serveFiles(ctx context.Context, _ stream.Hello, session *stream.Session) error {
	return t.files.Attach(ctx, session)
}

func (t *target) servePush(ctx context.Context, hello stream.Hello, session *stream.Session) error {
	return t.memory.AttachPush(ctx, hello, session)
}

// serveState keeps a data connection until the migration has ended here, and then until the source has
// heard so: the end of the connection would tell it sooner, but not why.
func (t *target) serveState(ctx context.Context, _ stream.Hello, session *stream.Session) error {
	if !t.link.Attach(session, t.agent.log) {
		return errors.New("a second data connection for one migration")
	}
	if err := waitFor(ctx, t.move.Done()); err != nil {
		return err
	}
	t.control.AwaitEnd(ctx)
	return nil
}
