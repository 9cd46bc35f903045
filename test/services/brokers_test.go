package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/nats-io/nats.go"
	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitMQ keeps messages that are never fetched, and delivers others.
func rabbitMQ() service {
	return service{
		name: "rabbitmq", port: 5672, packages: []string{"rabbitmq-server"}, every: 50 * time.Millisecond,
		setup: `printf 'loopback_users = none\nlisteners.tcp.default = 0.0.0.0:5672\n' >/etc/rabbitmq/rabbitmq.conf`,
		flags: []string{"--env", "RABBITMQ_NODENAME=rabbit@localhost", "--env", "HOME=/var/lib/rabbitmq",
			"--env", "RABBITMQ_LOGS=-"},
		user: "rabbitmq", command: []string{"/usr/lib/rabbitmq/bin/rabbitmq-server"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			return connectRabbit(ctx, to, number)
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (int64, error) {
			s, err := connectRabbit(ctx, to, number)
			if err != nil {
				return 0, err
			}
			defer s.Close()
			queue, err := s.channel.QueueDeclarePassive(s.kept(), true, false, false, false, nil)
			return max(0, asked-int64(queue.Messages)),
				err // a message that was sent but not acknowledged may be there
		},
	}
}

type rabbitSession struct {
	conn    *amqp.Connection
	channel *amqp.Channel
	number  int
	echo    string
	back    <-chan amqp.Delivery
}

func (s rabbitSession) kept() string { return fmt.Sprintf("kept-%d", s.number) }

func connectRabbit(ctx context.Context, to address, number int) (s rabbitSession, err error) {
	s.number = number
	s.conn, err = amqp.DialConfig("amqp://guest:guest@"+to.hostPort, amqp.Config{
		Heartbeat: askTimeout, Dial: func(network, address string) (net.Conn,
			error) {
			return to.dial(ctx, network, address)
		},
	})
	if err != nil {
		return s, err
	}
	s.channel, err = s.conn.Channel()
	if err == nil {
		err = s.channel.Confirm(false)
	}
	if err == nil {
		_, err = s.channel.QueueDeclare(s.kept(), true, false, false, false, nil)
	}
	var echo amqp.Queue
	if err == nil {
		echo, err = s.channel.QueueDeclare("", false, true, true, false, nil)
	}
	s.echo = echo.Name
	if err == nil {
		s.back, err = s.channel.Consume(s.echo, "", true, true, false, false, nil)
	}
	if err != nil {
		return s, errors.Join(err, s.conn.Close())
	}
	return s, nil
}

func (s rabbitSession) Ask(ctx context.Context, nth int64) error {
	text := row(s.number, nth)
	for _, queue := range []string{s.kept(), s.echo} {
		message := amqp.Publishing{Body: []byte(text), DeliveryMode: amqp.Persistent}
		sent, err := s.channel.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, message)
		if err != nil {
			return err
		}
		confirmed, err := sent.WaitContext(ctx)
		if err == nil && !confirmed {
			err = errors.New("a message was not taken")
		}
		if err != nil {
			return err
		}
	}
	return comesBack(ctx, s.back, func(m amqp.Delivery) string { return string(m.Body) }, text)
}

func (s rabbitSession) Close() error { return s.conn.CloseDeadline(time.Now().Add(time.Second)) }

// comesBack waits for a message, and checks that it is this one.
func comesBack[Message any](ctx context.Context, back <-chan Message, text func(Message) string,
	want string) error {
	select {
	case m, open := <-back:
		if !open {
			return errEnded
		}
		return is(nil, text(m), want)
	case <-ctx.Done():
		return fmt.Errorf("a message does not come back: %w", ctx.Err())
	}
}

// mosquitto keeps retained messages in memory.
func mosquitto() service {
	return service{
		name: "mosquitto", port: 1883, packages: []string{"mosquitto"}, user: "mosquitto",
		setup:   `printf 'listener 1883\nallow_anonymous true\nmax_queued_messages 0\n' >/etc/mosquitto/bench.conf`,
		command: []string{"mosquitto", "-c", "/etc/mosquitto/bench.conf"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			return connectMQTT(ctx, to, number)
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (int64, error) {
			s, err := connectMQTT(ctx, to, number)
			if err != nil {
				return 0, err
			}
			defer s.Close()
			kept := make(chan mqtt.Message, asked+1)
			topic := fmt.Sprintf("kept/%d/+", number)
			if err := wait(ctx, s.client.Subscribe(topic,
				1, func(_ mqtt.Client, m mqtt.Message) { kept <- m })); err != nil {
				return 0, err
			}
			// The last message comes after all that are kept.
			last := fmt.Sprintf("kept/%d/last", number)
			if err := wait(ctx, s.client.Publish(last, 1, false, "")); err != nil {
				return 0, err
			}
			for found := int64(0); ; found++ {
				select {
				case m := <-kept:
					if m.Topic() == last {
						return max(0, asked-found), nil
					}
				case <-ctx.Done():
					return 0, ctx.Err()
				}
			}
		},
	}
}

type mqttSession struct {
	client mqtt.Client
	number int
	back   chan mqtt.Message
}

func connectMQTT(ctx context.Context, to address, number int) (mqttSession, error) {
	options := mqtt.NewClientOptions().AddBroker("tcp://" +
		to.hostPort).SetAutoReconnect(false).SetConnectRetry(false).
		SetKeepAlive(askTimeout).SetOrderMatters(true)
	options.SetCustomOpenConnectionFn(func(*url.URL, mqtt.ClientOptions) (net.Conn,
		error) {
		return to.Dial(ctx)
	})
	s := mqttSession{client: mqtt.NewClient(options), number: number, back: make(chan mqtt.Message, 1)}
	err := wait(ctx, s.client.Connect())
	if err == nil && number != probe {
		err = wait(ctx, s.client.Subscribe(s.echo(), 1, func(_ mqtt.Client, m mqtt.Message) { s.back <- m }))
	}
	return s, err
}

func (s mqttSession) echo() string { return fmt.Sprintf("echo/%d", s.number) }

func (s mqttSession) Ask(ctx context.Context, nth int64) error {
	if s.number == probe {
		return nil
	}
	text := row(s.number, nth)
	if err := wait(ctx, s.client.Publish(fmt.Sprintf("kept/%d/%d", s.number, nth), 1, true,
		text)); err != nil {
		return err
	}
	if err := wait(ctx, s.client.Publish(s.echo(), 1, false, text)); err != nil {
		return err
	}
	return comesBack(ctx, s.back, func(m mqtt.Message) string { return string(m.Payload()) }, text)
}

func (s mqttSession) Close() error {
	s.client.Disconnect(0)
	return nil
}

// wait waits for an operation of an MQTT client.
func wait(ctx context.Context, token mqtt.Token) error {
	select {
	case <-token.Done():
		return token.Error()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// natsServer keeps a stream on its disk. It is built with this Go, so it listens with MPTCP.
func natsServer() service {
	return service{
		name: "nats", port: 4222,
		programs: map[string]program{
			"/usr/local/bin/nats-server": goModule{"github.com/nats-io/nats-server/v2@v2.12.1", "."}},
		command: []string{"nats-server", "--jetstream", "--store_dir=/var/lib/nats"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			return connectNATS(ctx, to, number)
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (int64, error) {
			s, err := connectNATS(ctx, to, number)
			if err != nil {
				return 0, err
			}
			defer s.Close()
			info, err := s.stream.StreamInfo("kept", &nats.StreamInfoRequest{SubjectsFilter: s.kept()},
				nats.Context(ctx))
			if err != nil {
				return 0, err
			}
			return max(0, asked-int64(info.State.Subjects[s.kept()])), nil
		},
	}
}

type natsSession struct {
	conn   *nats.Conn
	stream nats.JetStreamContext
	back   *nats.Subscription
	number int
}

// Dial has the signature that the library needs.
func (a natsDialer) Dial(network, address string) (net.Conn, error) {
	return a.to.dial(a.ctx, network, address)
}

type natsDialer struct {
	ctx context.Context
	to  address
}

func connectNATS(ctx context.Context, to address, number int) (s natsSession, err error) {
	s.number = number
	s.conn, err = nats.Connect("nats://"+to.hostPort, nats.SetCustomDialer(natsDialer{ctx, to}),
		nats.NoReconnect(),
		nats.PingInterval(askTimeout), nats.Timeout(askTimeout))
	if err != nil {
		return s, err
	}
	if s.stream, err = s.conn.JetStream(nats.MaxWait(askTimeout)); err == nil {
		_, err = s.stream.AddStream(&nats.StreamConfig{Name: "kept", Subjects: []string{"kept.*"}},
			nats.Context(ctx))
	}
	if err == nil {
		s.back, err = s.conn.SubscribeSync(s.echo())
	}
	if err != nil {
		s.conn.Close()
	}
	return s, err
}

func (s natsSession) kept() string { return fmt.Sprintf("kept.%d", s.number) }
func (s natsSession) echo() string { return fmt.Sprintf("echo.%d", s.number) }

func (s natsSession) Ask(ctx context.Context, nth int64) error {
	text := row(s.number, nth)
	if _, err := s.stream.Publish(s.kept(), []byte(text), nats.Context(ctx)); err != nil {
		return err
	}
	if err := s.conn.Publish(s.echo(), []byte(text)); err != nil {
		return err
	}
	m, err := s.back.NextMsgWithContext(ctx)
	if err != nil {
		return err
	}
	return is(nil, string(m.Data), text)
}

func (s natsSession) Close() error {
	s.conn.Close()
	return nil
}
