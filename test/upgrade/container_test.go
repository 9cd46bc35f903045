package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/lab/workload"
)

// The bytes in the Redis, and its client's requests per second.
const (
	redisBytes = 8 << 20
	redisRate  = 100
)

// container is a container that moves, and its expected state.
type container struct {
	reference string // of godwit
	at        string // the node where it runs
	next      int    // the number that a counting container must print next
	client    *workload.RedisCounter
	hang      context.CancelFunc // ends the client
}

// start starts a container on node a that prints 0, 1, 2 and so on.
func start(t *testing.T, reference string) *container {
	t.Helper()
	c := &container{reference: reference, at: "a"}
	t.Cleanup(c.remove)
	var err error
	if name, inDocker := strings.CutPrefix(reference, "docker:"); inDocker {
		_, err = world.lab.Exec(t.Context(), c.at, "docker", "run", "--detach", "--name", name, "--network",
			"none", image)
	} else {
		_, err = godwit(t, c.at, "run", "-d", "--name", name, image)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// startRedis starts a Redis on node a with a client that keeps one connection and checks each answer.
func startRedis(t *testing.T) *container {
	t.Helper()
	c := &container{reference: "redis", at: "a"}
	t.Cleanup(c.remove)
	must(t, c.at, "run", "-d", "--name", c.reference, "redis")
	there, err := c.list(t, c.at)
	if err != nil || len(there) != 1 {
		t.Fatalf("%s has %v, %v", c.at, there, err)
	}
	address := there[0].Definition.Network.Address.String() + ":6379"
	var connection net.Conn
	eventually(t, "redis to answer", func() (err error) {
		connection, err = world.lab.Dial(t.Context(), client, "tcp", address)
		return err
	})
	c.client = workload.NewRedisCounter(connection)
	if err := c.client.Fill(redisBytes); err != nil {
		t.Fatal(err)
	}
	ctx, hang := context.WithCancel(context.Background())
	c.hang = hang
	t.Cleanup(hang)
	c.client.Start(ctx, redisRate)
	return c
}

// goesOn checks that the container runs on one node only, and continues from its old state.
func (c *container) goesOn(t *testing.T) {
	t.Helper()
	look := c.counts
	if c.client != nil {
		look = c.answers
	}
	eventually(t, c.reference+" to go on", func() error { return look(t) })
	eventually(t, "the other node to be free of it", func() error {
		there, err := c.list(t, other(c.at))
		if err == nil && len(there) != 0 {
			err = fmt.Errorf("%s has %v", other(c.at), there)
		}
		return err
	})
}

// counts checks that a counting container has skipped no number, and that there are new ones.
func (c *container) counts(t *testing.T) error {
	t.Helper()
	said := strings.Fields(must(t, c.at, "logs", c.reference))
	for i, number := range said {
		if number != strconv.Itoa(i) {
			t.Fatalf("line %d of the log of %s is %q", i, c.reference, number)
		}
	}
	if before := c.next; len(said) > before {
		c.next = len(said)
		return nil
	}
	return fmt.Errorf("it is at %d", c.next)
}

// answers checks that the client of a Redis saw no error, and that there are new answers.
func (c *container) answers(t *testing.T) error {
	t.Helper()
	seen := c.client.Seen()
	if seen.Errors+seen.Lost+seen.Doubled > 0 || !seen.SameConnection {
		t.Fatalf("the client of %s saw %+v", c.reference, seen)
	}
	if before := c.next; int(seen.Requests) > before {
		c.next = int(seen.Requests)
		return nil
	}
	return errors.New("it does not answer")
}

// ends checks all data of a container at the end.
func (c *container) ends(t *testing.T) {
	t.Helper()
	c.goesOn(t)
	if c.client == nil {
		return
	}
	c.hang()
	if seen, err := c.client.Result(patience); err != nil || seen.Errors+seen.Lost+seen.Doubled > 0 {
		t.Errorf("the client of %s saw %+v, %v", c.reference, seen, err)
	}
	if err := c.client.Verify(redisBytes); err != nil {
		t.Error(err)
	}
}

// list returns a node's containers with this reference. Error: also while a container of the node is in
// doubt, because ps then fails.
func (c *container) list(t *testing.T, node string) ([]engine.Container, error) {
	t.Helper()
	out, err := godwit(t, node, "ps", "--all", "--json")
	var all []engine.Container
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	name := c.reference[strings.LastIndexByte(c.reference, ':')+1:]
	return slices.DeleteFunc(all, func(one engine.Container) bool { return one.Definition.Name != name }), err
}

// remove removes the container from any node.
func (c *container) remove() {
	for _, node := range labtest.Nodes() {
		cmd, err := world.lab.Command(context.Background(), node, "godwit", "rm", "--force", c.reference)
		if err == nil {
			_ = cmd.Run() // it fails on the node without the container
		}
	}
}
