package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

// observer supplies placement policies with node and link data.
type observer struct {
	agent *Agent

	mu     sync.Mutex
	looked map[string]lookedAt  // by container
	layers map[layersAt]int64   // that are missing there
	tried  map[string]time.Time // when a container was measured, or a link
}

type lookedAt struct {
	at   time.Time
	seen predict.Measured
}

type layersAt struct{ container, node string }

const (
	lookEvery    = 5 * time.Second  // what a container holds
	measureEvery = 10 * time.Minute // how fast it writes, or a link of which nothing is known
	writeWindow  = time.Second
)

func newObserver(a *Agent) *observer {
	return &observer{agent: a, looked: map[string]lookedAt{}, layers: map[layersAt]int64{},
		tried: map[string]time.Time{}}
}

func (w *observer) situation(ctx context.Context, p placement.Policy, live liveCopy) (placement.Situation,
	whereabouts, error) {
	a := w.agent
	s := placement.Situation{Node: a.self.Name, Busy: a.moves.busy()}
	container, err := a.engines.Inspect(ctx, referenceOf(p))
	switch {
	case a.moves.moving(p.Container):
		return s, isMoving, nil
	case errors.Is(err, engine.ErrNotFound), err == nil && container.State != engine.Running:
		return s, isMissing, nil
	case err != nil:
		return s, isHere, err
	}
	if s.MemoryBytes, err = a.admission.MemoryOf(ctx, p.Container); err != nil {
		return s, isHere, err
	}
	measured, err := w.measured(ctx, container, live)
	if err != nil {
		return s, isHere, err
	}
	if live != nil {
		s.Live = live.Target()
	}
	w.measureLinks(ctx, p)
	s.Now = time.Now()
	for _, node := range a.peers.Others() {
		way := a.peers.WayTo(node.Name)
		s.Nodes = append(s.Nodes, placement.Node{
			Name: node.Name, Reachable: a.peers.Reaches(node.Name), RTT: seconds(way.RTTSeconds),
			Bandwidth: way.BandwidthBitsPerSecond,
			Need: w.need(ctx, needed{container.Definition, measured, node, way, p.At(node.Name), live},
				s.Now),
		})
	}
	return s, isHere, nil
}

// referenceOf is a policy's container, in the engine that has it: of one that is away nobody
// concludes that the container is gone.
func referenceOf(p placement.Policy) string {
	if p.Engine == "" {
		return p.Container
	}
	return p.Engine + ":" + p.Container
}

func (w *observer) forget(container string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.looked, container)
	delete(w.tried, container)
	maps.DeleteFunc(w.layers, func(at layersAt, _ int64) bool { return at.container == container })
}

// once reports whether something was not done for so long, and notes that it is done now.
func (w *observer) once(what string, every time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.tried[what]) < every {
		return false
	}
	w.tried[what] = time.Now()
	return true
}

// measured is what is known of a container. How fast it writes is measured before there is a live
// copy: then it can be watched.
func (w *observer) measured(ctx context.Context, container engine.Container, live liveCopy) (predict.Measured,
	error) {
	a, id := w.agent, container.Definition.ID
	if live == nil && w.once(id, measureEvery) {
		a.samples.Measure(ctx, container.Definition, writeWindow, measureEvery)
	}
	w.mu.Lock()
	last, is := w.looked[id]
	w.mu.Unlock()
	if is && time.Since(last.at) < lookEvery {
		return last.seen, nil
	}
	seen, err := a.samples.Look(ctx, container.Definition)
	if err != nil {
		return seen, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looked[id] = lookedAt{time.Now(), seen}
	return seen, nil
}

// measureLinks finds out about the links of a path of which nothing is known. At neighbours that is
// not worth while: the first copy tells it.
func (w *observer) measureLinks(ctx context.Context, p placement.Policy) {
	a := w.agent
	for _, stop := range p.Path {
		node, err := a.peers.Find(stop.Node)
		_, bandwidth := a.peers.Link(stop.Node)
		if err == nil && bandwidth == 0 && node.Name != a.self.Name && a.peers.Reaches(stop.Node) &&
			w.once("link "+stop.Node, time.Minute) {
			if err := a.measure(ctx, node, measureBudget()); err != nil {
				a.log.Debug("link not measured", "node", stop.Node, "error", err)
			}
		}
	}
}

// needed is a copy whose cost is predicted.
type needed struct {
	definition engine.Definition
	measured   predict.Measured
	node       identity.Node
	way        predict.Link
	copy       *placement.Copy
	live       liveCopy
}

// need is what it takes until a copy is up to date. What has to be sent is like the whole memory of
// a smaller container, in one go: so the prediction is that of mode cold.
func (w *observer) need(ctx context.Context, n needed, now time.Time) placement.Cost {
	in := predict.Input{
		Container: n.measured.Container, Link: n.way,
		Source: w.agent.machine.Predicted(), Target: w.agent.machine.Predicted(),
	}
	in.Source.CompressBytesPerSec = n.measured.CompressBytesPerSecond
	memory := in.Container.PrivateBytes + in.Container.SharedBytes
	isLive := n.live != nil && n.live.Target() == n.node.Name
	extra := 0.0
	if n.copy != nil && !n.copy.Fresh.IsZero() {
		in.Container.PrivateBytes, in.Container.SharedBytes = w.written(n, isLive, now, memory), 0
		if !isLive { // all is read, and compared with what is there
			extra = float64(memory) / max(in.Source.PageBytesPerSecond, 1e8)
		}
	} else {
		in.Container.MissingLayerBytes = w.missingLayers(ctx, n)
	}
	cold := predict.Of(in, migration.Cold)
	cost := placement.Cost{Seconds: cold.Total.Expected + extra, High: cold.Total.High + 2*extra,
		Bytes: cold.Bytes.Expected}
	if told := liveStage(n.live); isLive && told.Rounds == 0 && cost.Bytes > 0 {
		left := max(0, 1-float64(told.SentBytes)/cost.Bytes)
		cost = placement.Cost{Seconds: left * cost.Seconds, High: left * cost.High, Bytes: left * cost.Bytes}
	}
	return cost
}

func liveStage(live liveCopy) migration.Stage {
	if live == nil {
		return migration.Stage{}
	}
	return live.Describe()
}

// written is how much of the memory was written since a copy was up to date. If nothing is known of
// that it can be all.
func (w *observer) written(n needed, isLive bool, now time.Time, memory int64) int64 {
	age := max(now.Sub(n.copy.Fresh).Seconds(), 0)
	written := n.measured.Curve.Within(age, float64(memory))
	switch told := liveStage(n.live); {
	case isLive && told.Rounds > 1:
		written = max(written, told.DirtyingRate*age)
	case len(n.measured.Curve) == 0 && !isLive:
		return memory
	}
	return min(int64(written), memory)
}

// missingLayers is how much of the image a node lacks. It is asked once.
func (w *observer) missingLayers(ctx context.Context, n needed) int64 {
	key := layersAt{n.definition.ID, n.node.Name}
	w.mu.Lock()
	bytes, known := w.layers[key]
	w.mu.Unlock()
	if known || !w.agent.peers.Reaches(n.node.Name) {
		return bytes
	}
	ctx, cancel := context.WithTimeout(ctx, w.agent.config.callTimeout())
	defer cancel()
	there, err := w.agent.layers.Ask(ctx, n.node, &api.LayersRequest{DiffIds: n.definition.Layers})
	if err != nil {
		return 0
	}
	has := map[string]bool{}
	for _, layer := range there {
		has[layer.DiffId] = true
	}
	for _, layer := range w.agent.layers.Here(n.definition.Layers) {
		if !has[layer.DiffId] {
			bytes += layer.StoredBytes
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.layers[key] = bytes
	return bytes
}

func (w *observer) stage(ctx context.Context, container, node string, rate float64,
	until time.Time) (liveCopy, error) {
	keep := min(max(time.Until(until), time.Second), migration.MaxKeep)
	settings, err := migration.StageSettings{Keep: keep, BandwidthLimit: rate}.Complete()
	if err != nil {
		return nil, err
	}
	g, err := w.agent.startStage(ctx, container, node, settings, idleFor)
	if err != nil {
		return nil, err
	}
	return g, nil
}

func (w *observer) keep(ctx context.Context, container, node string, d time.Duration) (idleCopy, error) {
	var reply *api.KeepReply
	err := w.call(ctx, node, func(ctx context.Context, peer api.PeerClient) (err error) {
		reply, err = peer.Keep(ctx, &api.KeepRequest{Container: container, Seconds: d.Seconds()})
		return err
	})
	if err != nil {
		return idleCopy{}, err
	}
	if reply.MemoryBytes < 0 || reply.MemoryBytes > placement.MaxBytes {
		return idleCopy{}, fmt.Errorf("%w: a copy at %s of %d bytes", errInvalid, node, reply.MemoryBytes)
	}
	return idleCopy{reply.MemoryBytes, reply.MemoryBytes > 0 && !reply.Incomplete}, nil
}

func (w *observer) follow(ctx context.Context, to gone, p placement.Policy) error {
	document, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return w.call(ctx, to.node, func(ctx context.Context, peer api.PeerClient) error {
		request := &api.FollowRequest{PolicyJson: document, NowUnixNanoseconds: time.Now().UnixNano(),
			Migration: to.migration}
		_, err := peer.Follow(ctx, request)
		return err
	})
}

// errAway is of a node that is not asked because it did not answer just now.
var errAway = errors.New("it does not answer")

// call asks a node, if it answers.
func (w *observer) call(ctx context.Context, name string,
	do func(context.Context, api.PeerClient) error) error {
	a := w.agent
	if !a.peers.Reaches(name) {
		return errAway
	}
	node, err := a.peers.Find(name)
	if err != nil {
		return err
	}
	client, err := a.peers.Client(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.config.callTimeout())
	defer cancel()
	return do(ctx, api.NewPeerClient(client))
}
