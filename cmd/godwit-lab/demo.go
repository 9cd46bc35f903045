package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/units"
)

const demoLong = `Demo shows on this machine what Godwit does. It sets up two nodes, joined by an emulated
network of 100 Mbit/s and 20 ms, and a Redis with 64 MiB of data in a container on node a. A client
increments a counter in Redis 200 times a second over one TCP connection. The container moves to node b and
back. The client must not lose or repeat a single increment.`

// demoResult is the demo's result as JSON.
type demoResult struct {
	Migrations []migration.Report `json:"migrations"`
	Client     demoClient         `json:"client"`
}

type demoClient struct {
	workload.Counted
	// LongestGaps are the longest gaps between two answers during each migration. The JSON name is the one
	// of the single gap of a client that sees one migration.
	LongestGaps []float64 `json:"longest_gap_seconds"`
}

const (
	demoLab       = "demo"
	demoDataBytes = 64 << 20
	demoRate      = 200
)

func newDemoCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "Show a container with an open TCP connection moving to another node and back",
		Long:    demoLong,
		Example: "  godwit-lab demo --json build/demo.json",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("the demo must run as root: it makes namespaces, mounts and routes")
			}
			return (&demo{out: cmd.OutOrStdout()}).run(cmd.Context(), file)
		},
	}
	cmd.Flags().StringVar(&file, "json", "", "file for the result as JSON")
	return cmd
}

type demo struct {
	out   io.Writer
	began time.Time
	lab   *lab.Lab
}

func (d *demo) run(ctx context.Context, file string) (err error) {
	d.began = time.Now()
	d.say("two nodes are started, joined by a link of 100 Mbit/s with a round trip of 20 ms")
	if err := lab.Down(demoLab); err != nil && !errors.Is(err, lab.ErrNoLab) {
		return fmt.Errorf("what an earlier demo left: %w", err)
	}
	d.lab, err = lab.Up(ctx, lab.Config{
		Name: demoLab, Nodes: 2, Link: lab.Link{BandwidthBitsPerSecond: 100_000_000,
			RTT: 20 * time.Millisecond},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.lab.Down()) }()
	result, err := d.show(ctx)
	if err != nil {
		return err
	}
	if file != "" {
		if err := writeResult(file, result); err != nil {
			return err
		}
	}
	return d.judge(result)
}

func writeResult(file string, result demoResult) error {
	data, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// say writes a line of the timeline.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "%7.1f s  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) show(ctx context.Context) (demoResult, error) {
	address, err := d.startRedis(ctx)
	if err != nil {
		return demoResult{}, err
	}
	counter, stop, err := d.startClient(ctx, address)
	if err != nil {
		return demoResult{}, err
	}
	defer stop()
	result := demoResult{}
	for _, way := range [][2]string{{"a", "b"}, {"b", "a"}} {
		report, err := d.migrate(ctx, way[0], way[1])
		if err != nil {
			return result, err
		}
		if err := d.countOn(ctx, counter); err != nil {
			return result, err
		}
		gap := counter.Gap()
		result.Migrations = append(result.Migrations, report)
		result.Client.LongestGaps = append(result.Client.LongestGaps, gap.Seconds())
		d.say("the client's longest wait for an answer was %s, and it is still connected",
			units.FormatSeconds(gap.Seconds()))
	}
	stop()
	counted, err := counter.Result(10 * time.Second)
	result.Client.Counted = counted
	return result, err
}

func (d *demo) startRedis(ctx context.Context) (string, error) {
	d.say("an image with Redis is built from this system's packages, or taken from the cache")
	archive, err := labimage.Build(ctx, "redis", imageCache)
	if err != nil {
		return "", err
	}
	if _, err := d.godwit(ctx, "a", "image", "load", archive); err != nil {
		return "", err
	}
	if _, err := d.godwit(ctx, "a", "run", "-d", "--name", "redis", "redis"); err != nil {
		return "", err
	}
	text, err := d.godwit(ctx, "a", "inspect", "redis")
	if err != nil {
		return "", err
	}
	var container struct {
		Definition struct {
			Network struct{ Address string }
		}
	}
	if err := json.Unmarshal([]byte(text), &container); err != nil {
		return "", err
	}
	address := container.Definition.Network.Address
	d.say("Redis runs in a container on node a; its address is %s", address)
	return address + ":6379", nil
}

func (d *demo) startClient(ctx context.Context, address string) (*workload.RedisCounter, context.CancelFunc,
	error) {
	if err := d.lab.Client("client", "a", lab.Link{}); err != nil {
		return nil, nil, err
	}
	conn, err := dialPatiently(ctx, d.lab, "client", address)
	if err != nil {
		return nil, nil, err
	}
	counter := workload.NewRedisCounter(conn)
	if err := counter.Fill(demoDataBytes); err != nil {
		return nil, nil, err
	}
	d.say("a client has connected and stored %s; now it counts, %d times a second",
		units.FormatBytes(demoDataBytes), demoRate)
	counting, stop := context.WithCancel(ctx)
	counter.Start(counting, demoRate)
	if err := d.countOn(ctx, counter); err != nil {
		stop()
		return nil, nil, err
	}
	counter.Gap() // ignore gaps before this point
	return counter, stop, nil
}

// dialPatiently connects to a server that may still be starting.
func dialPatiently(ctx context.Context, in *lab.Lab, machine, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := in.Dial(ctx, machine, "tcp", address)
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s does not answer: %w", address, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// countOn waits until the client has had another second's worth of answers.
func (d *demo) countOn(ctx context.Context, counter *workload.RedisCounter) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	until := counter.Answers() + demoRate
	for counter.Answers() < until {
		select {
		case <-ctx.Done():
			return errors.New("the client gets no answers any more")
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func (d *demo) migrate(ctx context.Context, from, to string) (migration.Report, error) {
	d.say("godwit migrate redis %s", to)
	text, err := d.godwit(ctx, from, "migrate", "redis", to, "--json")
	if err != nil {
		return migration.Report{}, err
	}
	var report migration.Report
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		return report, err
	}
	d.tell(report)
	return report, nil
}

// tell prints where the time of a migration went: while the container ran, while it was frozen, and after.
func (d *demo) tell(report migration.Report) {
	var before, after float64
	var frozen []string
	for _, phase := range report.Phases {
		switch {
		case phase.Downtime:
			frozen = append(frozen, fmt.Sprintf("%s %s", phase.Name, units.FormatSeconds(phase.Seconds)))
		case len(frozen) == 0:
			before += phase.Seconds
		default:
			after += phase.Seconds
		}
	}
	sent := report.Bytes
	d.note("%-8s while it ran (mode %s): %s of image layers and %s of memory sent ahead, all made ready "+
		"on node %s", units.FormatSeconds(before),
		report.Mode, units.FormatBytes(sent.Layers), units.FormatBytes(sent.MemoryPrecopy), report.Target)
	d.note("%-8s frozen, %s of memory and state sent: %s", units.FormatSeconds(report.DowntimeSeconds),
		units.FormatBytes(sent.MemoryFinal), strings.Join(frozen, ", "))
	d.note("%-8s running again: %d packets forwarded that were held for it, %s of memory sent after it, "+
		"what was left on node %s removed",
		units.FormatSeconds(after), report.Held.Packets,
		units.FormatBytes(sent.MemoryFaulted+sent.MemoryPushed), report.Source)
	d.say("redis runs on node %s", report.Target)
}

// note writes a line without the time, below the previous line.
func (d *demo) note(format string, args ...any) {
	fmt.Fprintf(d.out, "             %s\n", fmt.Sprintf(format, args...))
}

// godwit runs the program godwit in a node, by name: a node has its own /tmp, so a path below the machine's
// /tmp does not exist there.
func (d *demo) godwit(ctx context.Context, node string, args ...string) (string, error) {
	out, err := d.lab.Exec(ctx, node, append([]string{"godwit"}, args...)...)
	if err != nil {
		return out, fmt.Errorf("godwit %s on node %s: %w", strings.Join(args, " "), node, err)
	}
	return out, nil
}

func (d *demo) judge(result demoResult) error {
	c := result.Client
	if c.Errors+c.Lost+c.Doubled > 0 || !c.SameConnection {
		return fmt.Errorf("the client saw %d errors, %d lost and %d doubled counts; same connection: %t",
			c.Errors, c.Lost, c.Doubled, c.SameConnection)
	}
	d.say("%d requests over one TCP connection: none lost, none doubled, no error", c.Requests)
	return nil
}
