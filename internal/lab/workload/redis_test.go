package workload

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/await"
)

// serve answers INCR with the result of next, and SET with OK.
func serve(t *testing.T, next func() int64) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close(); server.Close() })
	go func() {
		reader := bufio.NewReader(server)
		for {
			for range 5 { // *2, $4, INCR, $6, visits
				if _, err := reader.ReadString('\n'); err != nil {
					return
				}
			}
			if _, err := fmt.Fprintf(server, ":%d\r\n", next()); err != nil {
				return
			}
		}
	}()
	return client
}

func count(t *testing.T, next func() int64) (Counted, error) {
	t.Helper()
	counter := NewRedisCounter(serve(t, next))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	counter.Start(ctx, 1000)
	await.True(t, "twenty answers", func() bool { return counter.Answers() >= 20 })
	cancel()
	return counter.Result(5 * time.Second)
}

func TestCounterAcceptsAStraightCount(t *testing.T) {
	value := int64(0)
	counted, err := count(t, func() int64 { value++; return value })
	if err != nil || counted.Errors+counted.Lost+counted.Doubled != 0 || !counted.SameConnection {
		t.Fatalf("counted %+v, error %v; want a clean count", counted, err)
	}
}

func TestCounterSeesLostAndDoubled(t *testing.T) {
	values := []int64{1, 2, 3, 3, 4, 7}
	i := -1
	counted, err := count(t, func() int64 {
		i++
		if i < len(values) {
			return values[i]
		}
		return values[len(values)-1] + int64(i-len(values)) + 1
	})
	if err != nil || counted.Lost != 1 || counted.Doubled != 2 {
		t.Fatalf("counted %+v, error %v; want 1 lost and 2 doubled", counted, err)
	}
}

func TestCounterReportsABrokenConnection(t *testing.T) {
	client, server := net.Pipe()
	server.Close()
	counter := NewRedisCounter(client)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	counter.Start(ctx, 1000)
	counted, err := counter.Result(5 * time.Second)
	if err == nil || counted.SameConnection {
		t.Fatalf("counted %+v, error %v; want a broken connection", counted, err)
	}
}

// keep is a server that stores values and returns them after spoil has changed them.
func keep(t *testing.T, spoil func(value []byte)) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close(); server.Close() })
	go func() {
		stored := map[string][]byte{}
		reader := bufio.NewReader(server)
		for {
			words, err := command(reader)
			if err != nil {
				return
			}
			if key := string(words[1]); string(words[0]) == "SET" {
				spoil(words[2])
				stored[key] = words[2]
				_, err = fmt.Fprint(server, "+OK\r\n")
			} else {
				_, err = fmt.Fprintf(server, "$%d\r\n%s\r\n", len(stored[key]), stored[key])
			}
			if err != nil {
				return
			}
		}
	}()
	return client
}

// command reads a Redis command.
func command(reader *bufio.Reader) (words [][]byte, err error) {
	var number, size int
	if _, err := fmt.Fscanf(reader, "*%d\r\n", &number); err != nil {
		return nil, err
	}
	for range number {
		if _, err := fmt.Fscanf(reader, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(reader, word); err != nil {
			return nil, err
		}
		words = append(words, word[:size])
	}
	return words, nil
}

func TestCounterVerifiesWhatItHasStored(t *testing.T) {
	const size = 256 << 10
	for _, spoils := range []bool{false, true} {
		values := 0
		counter := NewRedisCounter(keep(t, func(value []byte) {
			if values++; spoils && values == 3 {
				value[len(value)-1]++
			}
		}))
		if err := counter.Fill(size); err != nil {
			t.Fatal(err)
		}
		if err := counter.Verify(size); (err != nil) != spoils {
			t.Errorf("spoiled: %v; %v", spoils, err)
		}
	}
}
