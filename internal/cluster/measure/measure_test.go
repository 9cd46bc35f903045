package measure

import (
	"context"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/cluster/clustertest"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// notes are what was measured of links.
type notes struct{ links map[string]stream.Link }

func (n *notes) NoteLink(node string, link stream.Link)             { n.links[node] = link }
func (n *notes) NoteTransport(string, stream.Transport)             {}
func (n *notes) WayTo(string) predict.Link                          { return predict.Link{} }
func (n *notes) Link(string) (rtt time.Duration, bandwidth float64) { return time.Second, 1e6 }

// TestMeasure measures a link to a node that answers, and fails if nobody does.
func TestMeasure(t *testing.T) {
	all := clustertest.New(t, "a", "b")
	listener, err := wire.Listen(t.Context(), "127.0.0.1:0", wire.ListenOptions{Identity: all[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.AcceptData(t.Context())
		if err != nil {
			served <- err
			return
		}
		defer conn.Close()
		session, hello, err := stream.AnswerWith(t.Context(), conn,
			func(stream.Hello) (stream.Options, error) { return stream.Options{Workers: 1}, nil })
		if err == nil && hello.Purpose != Purpose {
			t.Errorf("purpose %q", hello.Purpose)
		}
		if err == nil {
			err = Answer(t.Context(), session)
			session.Close()
		}
		served <- err
	}()
	known := &notes{links: map[string]stream.Link{}}
	links := NewLinks(all[1].ID, known, stream.Options{Workers: 1})
	node := identity.Node{Name: "a", Address: listener.Addr().String()}
	if err := links.MeasureBriefly(t.Context(), node, 1<<20); err != nil {
		t.Fatal(err)
	}
	if link, noted := known.links["a"]; !noted || link.RTT <= 0 {
		t.Errorf("noted %+v, %t", link, noted)
	}
	if err := <-served; err != nil {
		t.Errorf("the other end: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := links.Measure(gone, node); err == nil {
		t.Error("measured although the caller is gone")
	}
}

// TestChoiceBudget: little memory is not worth a long measurement.
func TestChoiceBudget(t *testing.T) {
	for memory, want := range map[int64]int{0: 64 << 10, 8 << 20: 1 << 20, 1 << 40: budget().Bytes} {
		if got := choiceBudget(memory).Bytes; got != want {
			t.Errorf("%d bytes of memory: %d, want %d", memory, got, want)
		}
	}
}
