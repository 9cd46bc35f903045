package services

import (
	"context"
	"errors"
	"time"

	"github.com/godwit/godwit/internal/lab/workload/coap"
	"github.com/godwit/godwit/internal/lab/workload/face"
)

// The services of the studies that are not among the others. `make test-studies` moves them in the studies'
// ways.

// openCV recognises faces.
func openCV() service {
	return service{
		name: "opencv", lab: "recogniser", port: face.Port, single: true, every: 100 * time.Millisecond,
		connect: func(ctx context.Context, to address, number int) (session, error) {
			conn, err := to.Dial(ctx)
			if err != nil {
				return nil, err
			}
			s := faceSession{face.New(conn)}
			if number == probe {
				return s, nil
			}
			if err := s.Teach(ctx); err != nil {
				return nil, errors.Join(err, s.Close())
			}
			return s, nil
		},
	}
}

type faceSession struct{ *face.Client }

// Ask asks about all people.
func (s faceSession) Ask(ctx context.Context, _ int64) error { return s.Check(ctx) }

// californium is a server of CoAP in Java, whose memory changes.
func californium() service {
	return service{
		name: "java-coap", lab: "coap", port: coap.Port, udp: true, single: true,
		connect: func(ctx context.Context, to address, _ int) (session, error) {
			conn, err := to.Dial(ctx)
			if err != nil {
				return nil, err
			}
			s := coapSession{coap.New(conn)}
			if err := s.Begin(ctx); err != nil {
				return nil, errors.Join(err, s.Close())
			}
			return s, nil
		},
	}
}

type coapSession struct{ *coap.Client }

// Ask changes some of the data, and sometimes checks all of it.
func (s coapSession) Ask(ctx context.Context, nth int64) error {
	if nth%50 == 0 {
		return s.Check(ctx)
	}
	return s.Post(ctx, 20)
}
