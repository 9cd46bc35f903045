package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/migration"
)

const (
	godwitName   = "bench"
	godwitClient = "client"
)

// godwitWay is Godwit, cold, as a user has it: the program in the nodes of the lab.
type godwitWay struct {
	bed      *bed
	workload containerWorkload
	archive  string // the image
	at       string
	client   net.Conn
	counter  *workload.RedisCounter
	counting context.CancelFunc
}

func newGodwitWay(b *bed, w containerWorkload, archive string) *godwitWay {
	return &godwitWay{bed: b, workload: w, archive: archive, at: nodes[0]}
}

func (g *godwitWay) name() string { return wayGodwit }

func (g *godwitWay) start(ctx context.Context) error {
	for _, node := range nodes { // the image is on both, as for the other ways
		if _, err := g.bed.exec(ctx, node, program, "image", "load", g.archive); err != nil {
			return err
		}
	}
	run := append([]string{program, "run", "--detach", "--name", godwitName, g.workload.image}, g.workload.args...)
	if _, err := g.bed.exec(ctx, g.at, run...); err != nil {
		return err
	}
	if g.workload.port == 0 {
		return nil
	}
	container, err := g.inspect(ctx)
	if err != nil {
		return err
	}
	return g.connect(ctx, container)
}

// inspect is the container as Godwit knows it.
func (g *godwitWay) inspect(ctx context.Context) (engine.Container, error) {
	var container engine.Container
	out, err := g.bed.exec(ctx, g.at, program, "inspect", godwitName)
	if err == nil {
		err = json.Unmarshal([]byte(out), &container)
	}
	if err != nil {
		return container, fmt.Errorf("inspect the container: %w", err)
	}
	return container, nil
}

// connect gives the container its data, and a client that counts as long as the container is there.
func (g *godwitWay) connect(ctx context.Context, container engine.Container) error {
	if err := g.bed.lab.Client(godwitClient, nodes[0], lab.Link{}); err != nil {
		return err
	}
	address := netip.AddrPortFrom(container.Definition.Network.Address, redisPort).String()
	conn, counter, err := g.bed.fill(ctx, godwitClient, address)
	if err != nil {
		return err
	}
	g.client, g.counter = conn, counter
	counting, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.counting = stop
	counter.Start(counting, redisRate)
	return g.count(ctx)
}

// count waits until the client has had a quarter of a second's worth of further answers.
func (g *godwitWay) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for until := g.counter.Answers() + redisRate/4; g.counter.Answers() < until; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the client gets no answers any more: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

func (g *godwitWay) move(ctx context.Context) ([]measurement, error) {
	if g.counter != nil {
		g.counter.Gap() // what was before does not count
	}
	out, err := g.bed.exec(ctx, g.at, program, "migrate", godwitName, other(g.at), "--mode", "cold", "--json")
	if err != nil {
		return nil, err
	}
	var report migration.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, fmt.Errorf("report of the migration: %w", err)
	}
	g.at = report.Target
	measured := fromReport(report)
	if g.counter != nil {
		if err := g.count(ctx); err != nil {
			return nil, err
		}
		gap := g.counter.Gap().Seconds()
		measured = append(measured, measurement{metricGap, gap}, measurement{metricBeyond, gap - report.DowntimeSeconds})
	}
	return measured, nil
}

// fromReport takes from a report what is compared. The phases are those of the downtime, and add up to it.
func fromReport(r migration.Report) []measurement {
	sent := r.Bytes.MemoryFinal + r.Bytes.FilesFinal + r.Bytes.Metadata
	measured := []measurement{
		{metricDowntime, r.DowntimeSeconds}, {metricHandoff, r.HandoffSeconds}, {metricTotal, r.TotalSeconds},
		{metricSent, float64(sent)}, {metricUncompressed, float64(r.Bytes.MemoryRaw)},
	}
	seconds := map[string]float64{}
	var names []string
	for _, phase := range r.Phases {
		if !phase.Downtime {
			continue
		}
		if _, known := seconds[phase.Name]; !known {
			names = append(names, phase.Name)
		}
		seconds[phase.Name] += phase.Seconds
	}
	for _, name := range names {
		measured = append(measured, measurement{fmt.Sprintf(metricPhase, strings.ReplaceAll(name, "-", "_")), seconds[name]})
	}
	return measured
}

// stop also makes sure that the client has lost nothing: a quick switchover that loses requests is none.
func (g *godwitWay) stop(ctx context.Context) error {
	return errors.Join(g.endClient(), g.removeContainer(ctx))
}

func (g *godwitWay) endClient() error {
	if g.counter == nil {
		return nil
	}
	g.counting()
	seen, err := g.counter.Result(10 * time.Second)
	if err == nil && seen.Errors+seen.Lost+seen.Doubled > 0 {
		err = fmt.Errorf("the client saw %d errors, %d lost and %d doubled counts", seen.Errors, seen.Lost, seen.Doubled)
	}
	g.counter = nil
	return errors.Join(err, g.client.Close(), g.bed.lab.RemoveClient(godwitClient))
}

func (g *godwitWay) removeContainer(ctx context.Context) error {
	out, err := g.bed.exec(ctx, g.at, program, "ps", "--all")
	if err != nil || !strings.Contains(out, godwitName) {
		return err
	}
	_, err = g.bed.exec(ctx, g.at, program, "rm", "--force", godwitName)
	return err
}
