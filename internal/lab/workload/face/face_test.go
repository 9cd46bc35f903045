package face

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/await"
)

// serve recognises pictures by their bytes: its answer to a person's first picture, when it learnt that,
// stays the same for all that follow.
func serve(t *testing.T, who func(picture []byte) string) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close(); server.Close() })
	go func() {
		reader := bufio.NewReader(server)
		for {
			line, err := reader.ReadString('\n')
			if err != nil {
				return
			}
			words, answer := strings.Fields(line), "ok 1"
			if len(words) > 1 {
				var length int
				_, _ = fmt.Sscan(words[len(words)-1], &length)
				picture := make([]byte, length)
				_, _ = io.ReadFull(reader, picture)
				if answer = "ok"; words[0] == "WHO" {
					answer = who(picture)
				}
			}
			_, _ = fmt.Fprintln(server, answer)
		}
	}()
	return client
}

func TestClientWantsTheRightName(t *testing.T) {
	var right, seen []shot // seen is in the order of the people
	c := New(serve(t, func(picture []byte) string {
		for _, s := range right {
			if string(s.jpeg) == string(picture) {
				return s.name + " 12.5"
			}
		}
		if all := people(); len(seen) < len(all) {
			seen = append(seen, shot{all[len(seen)].name, picture})
			return seen[len(seen)-1].name + " 12.5"
		}
		return "nobody"
	}))
	if err := c.Teach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(t.Context()); err == nil {
		t.Error("a wrong answer was taken for right")
	}
	right = seen
	if err := c.Check(t.Context()); err != nil {
		t.Error(err)
	}
	c.Start(t.Context(), 100)
	await.True(t, "ten answers", func() bool { return c.Answers().Count() >= 10 || c.Err() != nil })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
