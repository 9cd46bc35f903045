package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/lab/workload/broker"
	"github.com/godwit/godwit/internal/lab/workload/coap"
	"github.com/godwit/godwit/internal/lab/workload/face"
	"github.com/godwit/godwit/internal/lab/workload/player"
)

// app is a workload of a study: a service, and a client that measures what its user sees.
type app struct {
	name    string
	image   string
	args    []string
	flags   []string // of `godwit run`
	network string
	port    int
	volume  string // directory of its persistent data, if its processes start anew
	// connect makes a client of the service, which may still be starting. The first client of a container
	// stores its data.
	connect func(ctx context.Context, dial dialer, first bool) (appClient, error)
}

// dialer connects to the service, wherever it is.
type dialer func(ctx context.Context) (net.Conn, error)

// appClient sends requests all the time.
type appClient interface {
	Answers() *workload.Answers
	// Err returns the client's error: a wrong answer, or none.
	Err() error
	// Check verifies that all data is there.
	Check(ctx context.Context) error
	Close() error
}

const (
	// appPatience is how long a service may take to start and to load its data, or to answer again.
	appPatience = 5 * time.Minute
	// settled is how many answers a client must get before and after a move.
	settled = 5
)

// patient retries until the service answers.
func (d dialer) patient(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, appPatience)
	defer cancel()
	for {
		conn, err := d(ctx)
		if err == nil {
			return conn, nil
		}
		if pauseErr := testbed.Pause(ctx, 20*time.Millisecond); pauseErr != nil {
			return nil, fmt.Errorf("the service does not answer: %w", err)
		}
	}
}

// busyboxApp is study A's: a shell's loop, whose count a client reads.
func busyboxApp() app {
	const loop = "httpd -p 80 -h /tmp; i=0; while :; do i=$((i+1)); echo $i >/tmp/.count; mv /tmp/.count " +
		"/tmp/count; sleep 0.1; done"
	return app{
		name: "busybox", image: "busybox", args: []string{"sh", "-c", loop}, network: "tcp", port: 80,
		connect: clockOf("count"),
	}
}

// blankApp is study C's container that serves only the time.
func blankApp() app {
	return app{name: "blank", image: "blank", network: "tcp", port: 80, connect: clockOf("clock")}
}

func clockOf(path string) func(context.Context, dialer, bool) (appClient, error) {
	return func(ctx context.Context, dial dialer, _ bool) (appClient, error) {
		c := workload.NewClock(dial, path)
		ctx, cancel := context.WithTimeout(ctx, appPatience)
		defer cancel()
		for c.Check(ctx) != nil { // the number does not exist from the beginning
			if err := testbed.Pause(ctx, 20*time.Millisecond); err != nil {
				return nil, fmt.Errorf("the service does not answer: %w", err)
			}
		}
		c.Start(context.WithoutCancel(ctx), 20*time.Millisecond)
		return c, nil
	}
}

// recogniserApp is in the role of study A's OpenFace.
func recogniserApp() app {
	const picturesPerSecond = 5
	return app{
		name: "face recognition", image: "recogniser", network: "tcp", port: face.Port,
		connect: func(ctx context.Context, dial dialer, first bool) (appClient, error) {
			conn, err := dial.patient(ctx)
			if err != nil {
				return nil, err
			}
			c := face.New(conn)
			if first {
				if err := c.Teach(ctx); err != nil {
					return nil, errors.Join(err, c.Close())
				}
			}
			c.Start(context.WithoutCancel(ctx), picturesPerSecond)
			return c, nil
		},
	}
}

// coapApp is study B's; so many kilobytes of its data change each second.
func coapApp(kilobytes int) app {
	return app{
		name: fmt.Sprintf("coap, %d KB/s", kilobytes), image: "coap", network: "udp", port: coap.Port,
		connect: func(ctx context.Context, dial dialer, _ bool) (appClient, error) {
			conn, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			c := coap.New(conn)
			if err := c.Begin(ctx); err != nil {
				return nil, errors.Join(err, c.Close())
			}
			c.Start(context.WithoutCancel(ctx), kilobytes)
			return c, nil
		},
	}
}

// videoApp is study C's.
func videoApp() app {
	return app{
		name: "video", image: "video", network: "tcp", port: player.Port,
		connect: func(ctx context.Context, dial dialer, _ bool) (appClient, error) {
			conn, err := dial.patient(ctx)
			if err != nil {
				return nil, err
			}
			p, err := player.New(conn.(*net.TCPConn), labimage.VideoPath, labimage.VideoSeconds)
			if err == nil {
				err = p.Prepare(ctx)
			}
			if err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			p.Start(context.WithoutCancel(ctx))
			return p, nil
		},
	}
}

// brokerApp is study D's: a stock of messages (400 MB) that stay, and messages (100 a second) that come and
// go.
func brokerApp(stock int64, perSecond int) app {
	return app{
		name: "rabbitmq", image: "broker", network: "tcp", port: broker.Port, volume: "/var/lib/rabbitmq",
		flags: []string{"--stop-timeout", "60s", "--start-timeout", "2m"},
		connect: func(ctx context.Context, dial dialer, _ bool) (appClient, error) {
			c := broker.New(dial)
			ctx, cancel := context.WithTimeout(ctx, appPatience)
			defer cancel()
			if err := c.Fill(ctx, stock); err != nil {
				return nil, err
			}
			c.Start(context.WithoutCancel(ctx), perSecond)
			return c, nil
		},
	}
}

// awaitAnswers waits until a client has had so many further answers.
func awaitAnswers(ctx context.Context, c appClient) error {
	ctx, cancel := context.WithTimeout(ctx, appPatience)
	defer cancel()
	for until := c.Answers().Count() + settled; c.Answers().Count() < until; {
		if err := c.Err(); err != nil {
			return fmt.Errorf("what the client saw: %w", err)
		}
		if err := testbed.Pause(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("the client gets no answers any more: %w", err)
		}
	}
	return nil
}

// godwitApp is Godwit with a container of a study, and its client.
type godwitApp struct {
	*moves.Godwit
	app    app
	client appClient
}

func newGodwitApp(b *testbed.Bed, a app, archive string) *godwitApp {
	return &godwitApp{
		Godwit: moves.NewGodwit(b, "study", moves.Workload{Image: a.image, Args: a.args}, archive), app: a,
	}
}

// start makes the container on the first node; the nodes in have get its image.
func (g *godwitApp) start(ctx context.Context, have ...string) error {
	for _, node := range have {
		if _, err := g.Bed.Exec(ctx, node, testbed.Program, "image", "load", g.Archive); err != nil {
			return err
		}
	}
	if err := g.Run(ctx, g.app.runFlags()...); err != nil {
		return err
	}
	container, err := g.Inspect(ctx)
	if err != nil {
		return err
	}
	if err := g.Bed.Lab.Client(g.ClientMachine(), testbed.UsersNode, lab.Link{}); err != nil {
		return err
	}
	g.HasClient = true
	address := netip.AddrPortFrom(container.Definition.Network.Address, uint16(g.app.port)).String()
	g.client, err = g.app.connect(ctx, func(ctx context.Context) (net.Conn, error) {
		return g.Bed.Lab.Dial(ctx, g.ClientMachine(), g.app.network, address)
	}, true)
	if err != nil {
		return fmt.Errorf("client of %s: %w", g.app.name, err)
	}
	return awaitAnswers(ctx, g.client)
}

// runFlags returns the flags of the container's command.
func (a app) runFlags() []string {
	if a.volume == "" {
		return a.flags
	}
	return append([]string{"--volume", studyVolume + ":" + a.volume}, a.flags...)
}

// studyVolume is the name of the volume of a workload that has one.
const studyVolume = "bench-study"

// check verifies after all moves that all data is there.
func (g *godwitApp) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, appPatience)
	defer cancel()
	return g.client.Check(ctx)
}

// lost reports whether there is no container left that could be moved.
func (g *godwitApp) lost(ctx context.Context) bool {
	for _, node := range testbed.Nodes {
		if out, err := g.Bed.Exec(ctx, node, testbed.Program, "ps"); err == nil &&
			strings.Contains(out, g.Container()) {
			g.At = node
			return g.client.Err() != nil
		}
	}
	return true
}

func (g *godwitApp) stop(ctx context.Context) error {
	var failed error
	if g.client != nil {
		failed = g.client.Close()
		g.client = nil
	}
	if g.HasClient {
		failed = errors.Join(failed, g.Bed.Lab.RemoveClient(g.ClientMachine()))
		g.HasClient = false
	}
	for _, node := range testbed.Nodes {
		out, err := g.Bed.Exec(ctx, node, testbed.Program, "ps", "--all")
		if err == nil && strings.Contains(out, g.Container()) {
			_, err = g.Bed.Exec(ctx, node, testbed.Program, "rm", "--force", g.Container())
		}
		failed = errors.Join(failed, err, removeVolume(g.Bed, node, studyVolume))
	}
	return failed
}

// moveBy moves the container to the other node, and returns the measurements and the client's answers from
// a second before the request on.
func (g *godwitApp) moveBy(ctx context.Context, way string) ([]results.Measurement, [][2]float64, error) {
	mode, staged := wayParts(way)
	if err := awaitAnswers(ctx, g.client); err != nil {
		return nil, nil, err
	}
	var measured []results.Measurement
	if staged {
		took, err := g.stage(ctx)
		if err != nil {
			return nil, nil, err
		}
		measured = append(measured, took...)
	}
	stopped := stopsOf(g.client)
	requested := time.Now()
	more, err := g.request(ctx, mode)
	if err != nil {
		return nil, nil, err
	}
	measured = append(measured, more...)
	if err := g.AwaitFilled(ctx); err != nil {
		return nil, nil, err
	}
	if err := awaitAnswers(ctx, g.client); err != nil {
		return nil, nil, err
	}
	measured = append(measured, results.Measurement{results.Gap, g.client.Answers().Gap(requested).Seconds()})
	if _, plays := g.client.(*player.Player); plays {
		measured = append(measured,
			results.Measurement{metricStill, stopsOf(g.client).Seconds - stopped.Seconds})
	}
	return measured, points(g.client, requested), nil
}

// stopsOf returns how often a film stood still, if the client plays one.
func stopsOf(c appClient) player.Stops {
	if p, plays := c.(*player.Player); plays {
		return p.Stops()
	}
	return player.Stops{}
}

func points(c appClient, requested time.Time) [][2]float64 {
	all := [][2]float64{}
	for _, one := range c.Answers().Since(requested.Add(-time.Second)) {
		all = append(all, [2]float64{one.At.Sub(requested).Seconds(), one.At.Sub(one.Asked).Seconds()})
	}
	return all
}
