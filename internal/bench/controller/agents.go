package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/uplink"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/pinned"
)

const (
	heartbeat    = 3 * time.Second
	firstBackoff = 500 * time.Millisecond // as package uplink has them
	maxBackoff   = 15 * time.Second
	joinsAtOnce  = 8
	bufferBytes  = 4 << 10 // of a connection here: there are thousands
	validFor     = 24 * time.Hour
)

// authority issues the certificates of the simulated nodes, which have one key.
type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "simulated cluster"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validFor),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &authority{key, certificate}, err
}

// issue makes the certificate of a node.
func (a *authority) issue(name string, number int) (*tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(number) + 2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validFor),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames: []string{identity.ServerName(name)},
		URIs: []*url.URL{{Scheme: "godwit", Host: "node", Path: "/" + name,
			RawQuery: fmt.Sprint("number=", number)}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, a.key.Public(), a.key)
	return &tls.Certificate{Certificate: [][]byte{der, a.certificate.Raw}, PrivateKey: a.key}, err
}

// fleet is the simulated agents.
type fleet struct {
	address   string
	server    pinned.Fingerprint
	agents    []*agent
	connected atomic.Int64
	running   sync.WaitGroup
	end       context.CancelFunc
}

// agent is one of them.
type agent struct {
	certificate *tls.Certificate
	from        net.IP // an address of its own, as a machine has
	state       *api.NodeState
}

func newFleet(address string, server pinned.Fingerprint, states map[string]*api.NodeState) (*fleet, error) {
	issuer, err := newAuthority()
	if err != nil {
		return nil, fmt.Errorf("simulate nodes: %w", err)
	}
	f := &fleet{address: address, server: server}
	for i := range len(states) {
		certificate, err := issuer.issue(nodeName(i), 1+i%identity.MaxNumber)
		if err != nil {
			return nil, fmt.Errorf("simulate nodes: %w", err)
		}
		f.agents = append(f.agents, &agent{certificate, net.IPv4(127, 1, byte(i/250), byte(1+i%250)),
			states[nodeName(i)]})
	}
	return f, nil
}

// dial connects an agent from its own address.
func (f *fleet) dial(a *agent) (*grpc.ClientConn, error) {
	return uplink.Dial(f.address, f.server, func() *tls.Certificate { return a.certificate },
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: a.from}}
			return dialer.DialContext(ctx, "tcp", address)
		}))
}

// join makes all nodes known to the controller, each with a token of its own.
func (f *fleet) join(ctx context.Context, token func(context.Context) (pinned.Token, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan *agent)
	var workers sync.WaitGroup
	for range joinsAtOnce {
		workers.Go(func() {
			for a := range work {
				err := guard.Do(func() error { return f.joinOne(ctx, a, token) })
				if err != nil {
					cancel(fmt.Errorf("join a simulated node: %w", err))
				}
			}
		})
	}
	for _, a := range f.agents {
		if ctx.Err() != nil {
			break
		}
		work <- a
	}
	close(work)
	workers.Wait()
	return context.Cause(ctx)
}

func (f *fleet) joinOne(ctx context.Context, a *agent,
	token func(context.Context) (pinned.Token, error)) error {
	made, err := token(ctx)
	if err != nil {
		return err
	}
	client, err := f.dial(a)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = api.NewUplinkClient(client).Join(ctx, &api.UplinkJoinRequest{Token: made.Secret()})
	return err
}

// run keeps all agents connected until stop is called.
func (f *fleet) run(ctx context.Context) {
	ctx, f.end = context.WithCancel(ctx)
	for _, a := range f.agents {
		f.running.Go(func() { f.keep(ctx, a) })
	}
}

func (f *fleet) stop() {
	f.end()
	f.running.Wait()
}

// keep connects an agent again whenever its connection ends, as package uplink does.
func (f *fleet) keep(ctx context.Context, a *agent) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		if f.connect(ctx, a) {
			backoff = firstBackoff
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff/2 + mrand.N(backoff)):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// connect is one connection, from the first message to its end.
func (f *fleet) connect(ctx context.Context, a *agent) (connected bool) {
	client, err := f.dial(a)
	if err != nil {
		return false
	}
	defer client.Close()
	stream, err := api.NewUplinkClient(client).Connect(ctx)
	if err != nil || stream.Send(&api.Up{State: a.state}) != nil {
		return false
	}
	if _, err := stream.Recv(); err != nil {
		return false
	}
	f.connected.Add(1)
	defer f.connected.Add(-1)
	ended := guard.Go(func() error {
		for {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	})
	select { // agents do not beat in step
	case err := <-ended:
		return err != nil
	case <-time.After(mrand.N(heartbeat)):
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		select {
		case err := <-ended:
			return err != nil
		case <-beat.C:
			free := a.state.FreeBytes + mrand.Int64N(1<<20)
			if stream.Send(&api.Up{Delta: &api.Delta{FreeBytes: free}}) != nil {
				return <-ended != nil // it has the reason
			}
		}
	}
}

// awaitNone waits until all agents have seen that the controller is gone.
func (f *fleet) awaitNone(ctx context.Context) error {
	for f.connected.Load() > 0 {
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
	return nil
}

// await waits until all agents are connected.
func (f *fleet) await(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for int(f.connected.Load()) < len(f.agents) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d simulated agents are connected after %v", f.connected.Load(),
				len(f.agents), patience)
		case <-time.After(pollEvery):
		}
	}
	return nil
}
