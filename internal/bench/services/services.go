package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/godwit/godwit/internal/bench/testbed"
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload"
	"github.com/godwit/godwit/internal/lab/workload/broker"
	"github.com/godwit/godwit/internal/lab/workload/coap"
	"github.com/godwit/godwit/internal/lab/workload/face"
	"github.com/godwit/godwit/internal/lab/workload/player"
)

// Busybox is study A's: a shell's loop, whose count a client reads.
func Busybox() App {
	const loop = "httpd -p 80 -h /tmp; i=0; while :; do i=$((i+1)); echo $i >/tmp/.count; mv /tmp/.count " +
		"/tmp/count; sleep 0.1; done"
	return App{
		Name: "busybox", Image: "busybox", Args: []string{"sh", "-c", loop}, Network: "tcp", Port: 80,
		Connect: clockOf("count"),
	}
}

// Blank is study C's container that serves only the time.
func Blank() App {
	return App{Name: "blank", Image: "blank", Network: "tcp", Port: 80, Connect: clockOf("clock")}
}

func clockOf(path string) func(context.Context, Dialer, bool) (Client, error) {
	return func(ctx context.Context, dial Dialer, _ bool) (Client, error) {
		c := workload.NewClock(dial, path)
		ctx, cancel := context.WithTimeout(ctx, Patience)
		defer cancel()
		for c.Check(ctx) != nil { // the number does not exist from the beginning
			if err := testbed.Pause(ctx, 20*time.Millisecond); err != nil {
				return nil, fmt.Errorf("the service does not answer: %w", err)
			}
		}
		c.Start(context.WithoutCancel(ctx), 20*time.Millisecond)
		return c, nil
	}
}

// Recogniser is in the role of study A's OpenFace.
func Recogniser() App {
	const picturesPerSecond = 5
	return App{
		Name: "face recognition", Image: "recogniser", Network: "tcp", Port: face.Port,
		Connect: func(ctx context.Context, dial Dialer, first bool) (Client, error) {
			conn, err := dial.patient(ctx)
			if err != nil {
				return nil, err
			}
			c := face.New(conn)
			if first {
				if err := c.Teach(ctx); err != nil {
					return nil, errors.Join(err, c.Close())
				}
			}
			c.Start(context.WithoutCancel(ctx), picturesPerSecond)
			return c, nil
		},
	}
}

// CoAP is study B's; so many kilobytes of its data change each second.
func CoAP(kilobytes int) App {
	return App{
		Name: fmt.Sprintf("coap, %d KB/s", kilobytes), Image: "coap", Network: "udp", Port: coap.Port,
		Connect: func(ctx context.Context, dial Dialer, _ bool) (Client, error) {
			conn, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			c := coap.New(conn)
			if err := c.Begin(ctx); err != nil {
				return nil, errors.Join(err, c.Close())
			}
			c.Start(context.WithoutCancel(ctx), kilobytes)
			return c, nil
		},
	}
}

// Video is study C's.
func Video() App {
	return App{
		Name: "video", Image: "video", Network: "tcp", Port: player.Port,
		Connect: func(ctx context.Context, dial Dialer, _ bool) (Client, error) {
			conn, err := dial.patient(ctx)
			if err != nil {
				return nil, err
			}
			p, err := player.New(conn.(*net.TCPConn), labimage.VideoPath, labimage.VideoSeconds)
			if err == nil {
				err = p.Prepare(ctx)
			}
			if err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			p.Start(context.WithoutCancel(ctx))
			return p, nil
		},
	}
}

// Broker is study D's: a stock of messages (400 MB) that stay, and messages (100 a second) that come and
// go.
func Broker(stock int64, perSecond int) App {
	return App{
		Name: "rabbitmq", Image: "broker", Network: "tcp", Port: broker.Port, Volume: "/var/lib/rabbitmq",
		flags: []string{"--stop-timeout", "60s", "--start-timeout", "2m"},
		Connect: func(ctx context.Context, dial Dialer, _ bool) (Client, error) {
			c := broker.New(dial)
			ctx, cancel := context.WithTimeout(ctx, Patience)
			defer cancel()
			if err := c.Fill(ctx, stock); err != nil {
				return nil, err
			}
			c.Start(context.WithoutCancel(ctx), perSecond)
			return c, nil
		},
	}
}
