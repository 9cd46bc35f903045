package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/migration"
)

// linked changes the link between the nodes until the end of the test.
func linked(t *testing.T, link lab.Link) {
	t.Helper()
	before, err := world.lab.Link("a", "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := world.lab.SetLink("a", "b", link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := world.lab.SetLink("a", "b", before); err != nil {
			t.Error(err)
		}
	})
}

// narrow returns a link on which incompressible memory follows for many seconds.
func narrow() lab.Link {
	return lab.Link{BandwidthBitsPerSecond: 20_000_000, RTT: 10 * time.Millisecond}
}

// pushes returns programs that use their memory like real ones while it comes.
func pushes() map[string]string {
	return map[string]string{
		"forks":    "/bin/chaos -mb 8 -pause 2ms -chaos -children 2 -deeds fork",
		"mappings": "/bin/chaos -mb 8 -pause 2ms -chaos -deeds fork,move,give,free,unmap,protect",
		// The container's first process runs a new program, and one more that ends, again and again.
		"programs": "echo '/bin/busybox true; exec /bin/sh /again' >/again; /bin/chaos -mb 8 -pause 2ms & " +
			"exec /bin/sh /again",
	}
}

// TestPushMemory lets programs use their memory while it follows them.
func TestPushMemory(t *testing.T) {
	link := narrow()
	link.BandwidthBitsPerSecond /= 5 // their contents compress well
	linked(t, link)
	for name, program := range pushes() {
		t.Run(name, func(t *testing.T) {
			c := run(t, nil, "/bin/sh", "-c", program)
			for _, mode := range []string{postCopy, hybrid} {
				c.looksAtAll()
				r := c.migrateBy(mode)
				c.looksAtAll()
				t.Logf("%s: %+v", mode, r.Push)
			}
		})
	}
}

// TestPushLinks moves a program that checks its memory over links of several kinds; over the worst one if
// there is time.
func TestPushLinks(t *testing.T) {
	links := []lab.Link{{BandwidthBitsPerSecond: 100_000_000, RTT: 20 * time.Millisecond}}
	if os.Getenv(migrationsVariable) != "" {
		links = append(links, lab.Link{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond},
			lab.Link{BandwidthBitsPerSecond: 10_000_000, RTT: 100 * time.Millisecond, Loss: 0.01})
	}
	for _, link := range links {
		t.Run(link.String(), func(t *testing.T) {
			linked(t, link)
			c := writer(t)
			for _, mode := range []string{postCopy, hybrid} {
				r := c.migrateBy(mode)
				t.Logf("%s: %+v", mode, r.Push)
			}
			c.right()
		})
	}
}

// TestPushRedis counts with a Redis in post-copy, over one connection: every answer comes, once, and is
// right.
func TestPushRedis(t *testing.T) {
	linked(t, lab.Link{BandwidthBitsPerSecond: 100_000_000, RTT: 20 * time.Millisecond})
	c, conn := server(t, "redis", "6379")
	counter := workload.NewRedisCounter(conn)
	if err := counter.Fill(16 << 20); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	counter.Start(ctx, 500)
	for _, mode := range []string{postCopy, hybrid} {
		before := counter.Answers()
		c.migrateBy(mode)
		c.eventually("answers of redis on "+c.node, func() bool { return counter.Answers() > before+50 })
	}
	stop()
	counted, err := counter.Result(patience)
	if err != nil || counted.Errors+counted.Lost+counted.Doubled > 0 || !counted.SameConnection {
		t.Errorf("the client saw %+v, %v", counted, err)
	}
}

// depart begins a migration to the other node and returns its id.
func (c *container) depart(flags ...string) string {
	c.t.Helper()
	return strings.TrimSpace(must(c.t, c.node,
		append([]string{"migrate", "--detach", c.name, c.other(), "--mode", "cold"}, flags...)...))
}

// reported reads a node's report of a migration.
func (c *container) reported(node, id string) (r report) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(must(c.t, node, "migration", "show", "--json", id)), &r); err != nil {
		c.t.Fatal(err)
	}
	return r
}

// arrived waits until a migration from a node has ended, and the container is at the other node.
func (c *container) arrived(id string) report {
	c.t.Helper()
	from := c.node
	var r report
	c.eventually("end of the migration", func() bool {
		r = c.reported(from, id)
		return r.Result != string(migration.ResultRuns)
	})
	if r.Result != string(migration.Moved) {
		c.t.Fatalf("it did not move: %+v", r)
	}
	c.node = c.other()
	c.gone(from)
	return r
}

// writes starts a container on node a with incompressible memory, much of which is written all the time.
func writes(t *testing.T) *container {
	t.Helper()
	if err := loadPages(); err != nil {
		t.Fatal(err)
	}
	config := pages.Config{Size: writerBytes, Hot: 8 << 20, Rate: 16 << 20, Check: 1 << 20}
	return runImage(t, pagesImage, nil, append([]string{labimage.ProgramPath}, config.Args()...)...)
}

// TestSwitch turns a pre-copy into a hybrid: by hand, in the middle of a round, and automatically, when the
// rest does not fit.
func TestSwitch(t *testing.T) {
	linked(t, lab.Link{BandwidthBitsPerSecond: 100_000_000, RTT: time.Millisecond})
	c := writes(t)
	t.Run("by hand", func(t *testing.T) {
		id := c.depart("--mode", preCopy, "--bandwidth-limit", "60mbit")
		c.eventually("a round", func() bool {
			out, err := godwit(t.Context(), c.node, "migration", "switch", id)
			return err == nil && out.code == 0
		})
		if r := c.arrived(id); r.Push == nil || r.Push.RemotePages == 0 {
			t.Errorf("after the switch: %+v", r)
		}
	})
	t.Run("by itself", func(t *testing.T) {
		id := c.depart("--mode", preCopy, "--on-no-convergence", hybrid, "--downtime-target", "1ms",
			"--max-rounds", "2")
		if r := c.arrived(id); r.Push == nil || r.Push.RemotePages == 0 {
			t.Errorf("its rest cannot have fitted: %+v", r)
		}
	})
	c.right()
}

// pushing moves a container to node b over a narrow link, and returns when it runs there and some of its
// memory is missing.
func pushing(t *testing.T, c *container) (id string, wide func()) {
	t.Helper()
	linked(t, narrow())
	id = c.depart("--mode", postCopy)
	c.eventually("it to be there", func() bool {
		r := c.reported(c.node, id)
		out, err := godwit(t.Context(), c.other(), "ps")
		return err == nil && r.Push != nil && r.Push.LeftPages > 0 && strings.Contains(out.stdout, c.name) &&
			strings.Contains(out.stdout, "running")
	})
	c.node = c.other()
	return id, func() {
		if err := world.lab.SetLink("a", "b",
			lab.Link{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond}); err != nil {
			t.Error(err)
		}
	}
}

// over waits until the migration from node a has ended and nothing of it is left there.
func (c *container) over(id string) {
	c.t.Helper()
	var r report
	c.eventually("end of the migration", func() bool {
		r = c.reported("a", id)
		return r.Result != string(migration.ResultRuns)
	})
	if r.Result != string(migration.Moved) {
		c.t.Errorf("the migration ended as %+v", r)
	}
	c.gone("a")
}

// TestWhilePushing uses a container whose memory is still on its way.
func TestWhilePushing(t *testing.T) {
	t.Run("migrate", func(t *testing.T) {
		c := writer(t)
		id, wide := pushing(t, c)
		out, err := godwit(t.Context(), "b", "migrate", c.name, "a")
		if err != nil || out.code != 1 || !strings.Contains(out.stderr, "--wait") {
			t.Errorf("migrated during the push: %v, exit code %d: %s", err, out.code, out.stderr)
		}
		ended := make(chan error, 1)
		go func() {
			out, err := godwit(t.Context(), "b", "migrate", "--wait", c.name, "a")
			if err == nil && out.code != 0 {
				err = fmt.Errorf("exit code %d: %s", out.code, out.stderr)
			}
			ended <- err
		}()
		wide()
		if err := <-ended; err != nil {
			t.Errorf("migrated after the push: %v", err)
		}
		if r := c.reported("a", id); r.Result != string(migration.Moved) {
			t.Errorf("the first migration says %+v", r)
		}
		c.node = "a"
		c.right()
	})
	t.Run("exec", func(t *testing.T) {
		c := writer(t)
		id, wide := pushing(t, c)
		if out := c.exec(labimage.ProgramPath, "--help"); out.code != 0 || out.stdout == "" {
			t.Errorf("exec during the push: %+v", out)
		}
		wide()
		c.over(id)
		c.right()
	})
	t.Run("stop", func(t *testing.T) {
		c := writer(t)
		id, _ := pushing(t, c)
		must(t, "b", "stop", "--time", "1s", c.name)
		c.over(id)
	})
	t.Run("rm", func(t *testing.T) {
		c := writer(t)
		id, wide := pushing(t, c)
		if out, err := godwit(t.Context(), "b", "rm", "--force", c.name); err != nil || out.code != 1 ||
			!strings.Contains(out.stderr, "still being sent") {
			t.Errorf("removed during the push: %v, exit code %d: %s", err, out.code, out.stderr)
		}
		wide()
		c.over(id)
	})
	t.Run("it ends", func(t *testing.T) {
		c := writer(t)
		id, _ := pushing(t, c)
		// SIGQUIT ends a program in Go by itself
		if _, err := world.lab.Exec(t.Context(), "b", "kill", "-QUIT",
			strconv.Itoa(c.inspect().PID)); err != nil {
			t.Fatal(err)
		}
		if out, err := godwit(t.Context(), "b", "wait", c.name); err != nil || out.code != 2 {
			t.Errorf("it ended with %v, exit code %d: %s", err, out.code, out.stderr)
		}
		c.over(id)
	})
}
