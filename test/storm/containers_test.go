package storm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/migration"
)

// client is a machine beside the nodes, with the clients of the serving containers.
const client = "client"

// The modes that containers move in.
var (
	anyMode   = []migration.Mode{migration.Cold, migration.PreCopy, migration.PostCopy, migration.Hybrid}
	startable = append(slices.Clone(anyMode), migration.Restart) // for containers that may be started anew
)

// program is the program of a container of the storm.
type program string

const (
	counts program = "counts"
	writes program = "writes files"
	redis  program = "redis"
)

// Bytes in a Redis, and its client's requests per second.
const (
	redisBytes = 4 << 20
	redisRate  = 50
)

// subject is a container of the storm.
type subject struct {
	name    string
	engine  via
	program program
	modes   []migration.Mode

	fence    *fence // of programs that beat
	counter  *workload.RedisCounter
	answered int64 // at the last check
	hang     context.CancelFunc

	at     int // index of its node at the last check
	events []string
}

// reference is the container's name for godwit.
func (s *subject) reference() string { return s.engine.reference(s.name) }

// note records an event of a container.
func (s *subject) note(format string, args ...any) {
	s.events = append(s.events, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// cast makes the containers of a storm.
func cast(long bool) []*subject {
	all := []*subject{
		{name: "counts", program: counts, modes: anyMode},
		{name: "starts", program: counts, modes: startable},
		{name: "writes", program: writes, modes: anyMode},
		{name: "redis", program: redis, modes: anyMode},
		{name: "docker", program: counts, modes: anyMode, engine: docker},
	}
	if long {
		all = append(all,
			&subject{name: "redis2", program: redis, modes: anyMode},
			&subject{name: "writes2", program: writes, modes: startable},
			&subject{name: "docker2", program: writes, modes: anyMode, engine: docker},
			&subject{name: "podman", program: writes, modes: anyMode, engine: podman},
			&subject{name: "podman2", program: counts, modes: anyMode, engine: podman},
			&subject{name: "containerd", program: counts, modes: anyMode, engine: containerd},
			&subject{name: "containerd2", program: writes, modes: anyMode, engine: containerd},
			&subject{name: "counts2", program: counts, modes: anyMode},
			&subject{name: "starts2", program: counts, modes: startable},
		)
	}
	return all
}

// variable identifies the container in the environment of its processes.
const variable = "GODWIT_STORM"

// mark is its value.
func (s *subject) mark() string { return filepath.Base(world.directory) + "/" + s.name }

// beats returns the directory in which its program reports that it runs.
func (s *subject) beats() string { return filepath.Join(world.directory, "beats-"+s.name) }

// start starts the container on the first node.
func (s *subject) start(t *testing.T) {
	t.Helper()
	beats := s.beats()
	if err := os.MkdirAll(beats, 0o755); err != nil {
		t.Fatal(err)
	}
	command := []string{"godwit", "run", "-d", "--name", s.name, "-e", variable + "=" + s.mark(), "redis"}
	if s.program != redis {
		s.fence = newFence(filepath.Join(beats, "log"), slices.Contains(s.modes, migration.Restart))
		program := []string{"/beat", "/beats/log"}
		if s.program == writes {
			program = append(program, "/files")
		}
		command = s.engine.run(s.name, s.mark(), beats, program...)
	}
	if _, err := world.lab.Exec(t.Context(), world.nodes[0], command...); err != nil {
		t.Fatal(err)
	}
	s.at = 0
	if s.program == redis {
		s.connect(t)
	}
}

// connect starts a client that counts at a Redis.
func (s *subject) connect(t *testing.T) {
	t.Helper()
	list, err := containers(t.Context(), world.nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	index := slices.IndexFunc(list, func(c engine.Container) bool { return c.Definition.Name == s.name })
	if index < 0 {
		t.Fatalf("%s is not on %s", s.name, world.nodes[0])
	}
	address := list[index].Definition.Network.Address.String() + ":6379"
	var conn net.Conn
	eventually(t, "redis to answer", func() (err error) {
		conn, err = world.lab.Dial(t.Context(), client, "tcp", address)
		return err
	})
	s.counter = workload.NewRedisCounter(conn)
	if err := s.counter.Fill(redisBytes); err != nil {
		t.Fatal(err)
	}
	ctx, hang := context.WithCancel(context.Background())
	s.hang = hang
	t.Cleanup(hang)
	s.counter.Start(ctx, redisRate)
}

// goesOn reports whether the program has made progress since the last call, and whether its results were
// right.
func (s *subject) goesOn() (bool, error) {
	if s.program != redis {
		return s.fence.read()
	}
	seen := s.counter.Seen()
	if seen.Errors+seen.Lost+seen.Doubled > 0 || !seen.SameConnection {
		return false, fmt.Errorf("its client saw %+v", seen)
	}
	more := seen.Requests > s.answered
	s.answered = seen.Requests
	return more, nil
}

// finish checks all data of a program at the end.
func (s *subject) finish() error {
	if s.program != redis {
		_, err := s.fence.read()
		return err
	}
	s.hang()
	counted, err := s.counter.Result(patience)
	if err != nil || counted.Errors+counted.Lost+counted.Doubled > 0 {
		return fmt.Errorf("its client saw %+v: %w", counted, err)
	}
	return s.counter.Verify(redisBytes)
}

// remove removes the container from any node.
func (s *subject) remove(ctx context.Context) error {
	_, err := world.lab.Exec(ctx, world.nodes[s.at], "godwit", "rm", "--force", s.reference())
	return errors.Join(err, os.RemoveAll(s.beats()))
}

// errTwice means that a program has run twice.
var errTwice = errors.New("it ran twice")

// describe returns the history of a container that has a problem.
func (s *subject) describe() string {
	last := s.events[max(0, len(s.events)-40):]
	return s.name + ", before it:\n  " + strings.Join(last, "\n  ")
}
