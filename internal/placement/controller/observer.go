package controller

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
	config Config

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

func newObserver(config Config) *observer {
	return &observer{config: config, looked: map[string]lookedAt{}, layers: map[layersAt]int64{},
		tried: map[string]time.Time{}}
}

func (w *observer) situation(ctx context.Context, p placement.Policy, live Live) (placement.Situation,
	whereabouts, error) {
	here := w.config
	s := placement.Situation{Node: here.Node, Busy: here.Migrations.Busy()}
	container, err := here.Containers.Inspect(ctx, referenceOf(p))
	switch {
	case here.Migrations.Moving(p.Container):
		return s, isMoving, nil
	case errors.Is(err, engine.ErrNotFound), err == nil && container.State != engine.Running:
		return s, isMissing, nil
	case err != nil:
		return s, isHere, err
	}
	if s.MemoryBytes, err = here.Containers.MemoryBytes(ctx, p.Container); err != nil {
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
	for _, node := range here.Nodes.Others() {
		way := here.Links.WayTo(node.Name)
		s.Nodes = append(s.Nodes, placement.Node{
			Name: node.Name, Reachable: here.Nodes.Reaches(node.Name), RTT: seconds(way.RTTSeconds),
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
func (w *observer) measured(ctx context.Context, container engine.Container, live Live) (predict.Measured,
	error) {
	samples, id := w.config.Samples, container.Definition.ID
	if live == nil && w.once(id, measureEvery) {
		samples.Measure(ctx, container.Definition, writeWindow, measureEvery)
	}
	w.mu.Lock()
	last, is := w.looked[id]
	w.mu.Unlock()
	if is && time.Since(last.at) < lookEvery {
		return last.seen, nil
	}
	seen, err := samples.Look(ctx, container.Definition)
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
	here := w.config
	for _, stop := range p.Path {
		node, err := here.Nodes.Find(stop.Node)
		_, bandwidth := here.Links.Link(stop.Node)
		if err == nil && bandwidth == 0 && node.Name != here.Node && here.Nodes.Reaches(stop.Node) &&
			w.once("link "+stop.Node, time.Minute) {
			if err := here.Links.Measure(ctx, node); err != nil {
				here.Log.Debug("link not measured", "node", stop.Node, "error", err)
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
	live       Live
}

// need is what it takes until a copy is up to date. What has to be sent is like the whole memory of
// a smaller container, in one go: so the prediction is that of mode cold.
func (w *observer) need(ctx context.Context, n needed, now time.Time) placement.Cost {
	in := predict.Input{
		Container: n.measured.Container, Link: n.way,
		Source: w.config.Speed(), Target: w.config.Speed(),
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

func liveStage(live Live) migration.Stage {
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
	if known || !w.config.Nodes.Reaches(n.node.Name) {
		return bytes
	}
	ctx, cancel := context.WithTimeout(ctx, w.config.CallTimeout)
	defer cancel()
	there, err := w.config.Layers.Ask(ctx, n.node, &api.LayersRequest{DiffIds: n.definition.Layers})
	if err != nil {
		return 0
	}
	has := map[string]bool{}
	for _, layer := range there {
		has[layer.DiffId] = true
	}
	for _, layer := range w.config.Layers.Here(n.definition.Layers) {
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
	until time.Time) (Live, error) {
	keep := min(max(time.Until(until), time.Second), migration.MaxKeep)
	settings, err := migration.StageSettings{Keep: keep, BandwidthLimit: rate}.Complete()
	if err != nil {
		return nil, err
	}
	return w.config.Stages.Begin(ctx, container, node, settings, idleFor)
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
		return idleCopy{}, fmt.Errorf("%w: a copy at %s of %d bytes", api.ErrInvalid, node, reply.MemoryBytes)
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
	nodes := w.config.Nodes
	if !nodes.Reaches(name) {
		return errAway
	}
	node, err := nodes.Find(name)
	if err != nil {
		return err
	}
	client, err := nodes.Client(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.config.CallTimeout)
	defer cancel()
	return do(ctx, api.NewPeerClient(client))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
