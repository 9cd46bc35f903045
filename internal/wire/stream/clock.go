package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"time"
)

// Sample is a query and its answer between two clocks, in nanoseconds since 1970. The query left at Sent
// and the answer came at Returned. By the peer's clock, the query came at Received and the answer left at
// Answered.
type Sample struct {
	Sent, Received, Answered, Returned int64
}

// RTT returns the round trip without the peer's own time.
func (s Sample) RTT() time.Duration {
	return time.Duration((s.Returned - s.Sent) - (s.Answered - s.Received))
}

// Offset is how far the peer's clock is ahead of this one, and the maximum error.
type Offset struct {
	Ahead time.Duration
	Error time.Duration
}

// ToLocal returns the time of this node's clock when the peer's clock showed t.
func (o Offset) ToLocal(t time.Time) time.Time { return t.Add(-o.Ahead) }

// EstimateOffset compares two clocks as NTP does (RFC 5905, section 8). The sample with the
// shortest round trip was delayed least, and the truth is at most half of its round trip away,
// however unequal the two ways are.
func EstimateOffset(samples []Sample) (Offset, error) {
	var best Sample
	found := false
	for _, s := range samples {
		if s.RTT() >= 0 && s.Returned >= s.Sent && (!found || s.RTT() < best.RTT()) {
			best, found = s, true
		}
	}
	if !found {
		return Offset{}, errors.New("no usable sample of the peer's clock")
	}
	ahead := (best.Received-best.Sent)/2 + (best.Answered-best.Returned)/2
	return Offset{Ahead: time.Duration(ahead), Error: best.RTT()/2 + 1}, nil
}

// A ping is its number and when it was sent; a pong adds when the ping was received and when the
// pong was sent.
const (
	pingBytes = 16
	pongBytes = 32
)

func ping(number uint64) []byte {
	payload := make([]byte, pingBytes)
	binary.BigEndian.PutUint64(payload, number)
	return controlFrame(framePing, payload)
}

func pong(ping []byte, received time.Time) []byte {
	payload := binary.BigEndian.AppendUint64(append([]byte(nil), ping...), uint64(received.UnixNano()))
	return controlFrame(framePong, append(payload, make([]byte, 8)...))
}

// stamp puts the time into a frame that needs it, at the moment at which it is sent.
func stamp(frame []byte) {
	if kind := frameType(frame[0]); kind == framePing || kind == framePong {
		binary.BigEndian.PutUint64(frame[len(frame)-8:], uint64(time.Now().UnixNano()))
	}
}

// Ping asks the peer for the time. The peer answers while it reads, so it must not be stuck in a section.
func (s *Session) Ping(ctx context.Context) (Sample, error) {
	return sampled(s.question(ctx, func(number uint64) [][]byte { return [][]byte{ping(number)} })())
}

// sampled processes the answer to a ping at the moment at which it arrives.
func sampled(answer []byte, err error) (Sample, error) {
	if err != nil {
		return Sample{}, err
	}
	returned := time.Now().UnixNano()
	if len(answer) != pongBytes-8 {
		return Sample{}, protocolError("a pong of %d bytes", len(answer)+8)
	}
	field := func(at int) int64 { return int64(binary.BigEndian.Uint64(answer[at:])) }
	return Sample{Sent: field(0), Received: field(8), Answered: field(16), Returned: returned}, nil
}
