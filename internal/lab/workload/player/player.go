// Package player watches a film on a web server, like a viewer in study C (Addad et al.): it buffers two
// seconds, plays the film at its own rate, and reports whether the picture ever stood still.
package player

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/lab/workload"
)

const (
	// Port is the server's.
	Port = 80
	// buffered is how much of the film is buffered, in seconds.
	buffered = 2.0
	// piece is how much is read at once, in seconds.
	piece = 0.1
	// receiveBuffer is the kernel's: its content is in addition to the two seconds.
	receiveBuffer = 64 << 10
)

// Stops counts the times when the picture stood still.
type Stops struct {
	Number  int
	Seconds float64
}

// Player is one viewer.
type Player struct {
	conn    net.Conn
	reader  *bufio.Reader
	path    string
	length  float64 // of the film, in seconds
	size    int64
	sum     [sha256.Size]byte
	answers workload.Answers
	end     context.CancelFunc
	work    sync.WaitGroup

	mu     sync.Mutex
	stops  Stops
	failed error
}

// New uses a connection, which is closed with the player, to watch a film of this length in seconds.
func New(conn *net.TCPConn, path string, length float64) (*Player, error) {
	if err := conn.SetReadBuffer(receiveBuffer); err != nil {
		return nil, err
	}
	return &Player{conn: conn, reader: bufio.NewReader(conn), path: path, length: length, end: func() {}}, nil
}

// Prepare fetches the film once, at full speed, so that the player knows its expected content.
func (p *Player) Prepare(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = p.conn.SetDeadline(time.Now()) })()
	body, err := p.request()
	if err != nil {
		return err
	}
	digest := sha256.New()
	if p.size, err = io.Copy(digest, body); err != nil {
		return fmt.Errorf("fetch the film: %w", err)
	}
	digest.Sum(p.sum[:0])
	return body.Close()
}

func (p *Player) request() (io.ReadCloser, error) {
	request, err := http.NewRequest(http.MethodGet, "http://server/"+p.path, nil)
	if err != nil {
		return nil, err
	}
	if err := request.Write(p.conn); err != nil {
		return nil, fmt.Errorf("ask for the film: %w", err)
	}
	response, err := http.ReadResponse(p.reader, request)
	if err != nil {
		return nil, fmt.Errorf("ask for the film: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("ask for the film: %s", response.Status), response.Body.Close())
	}
	return response.Body, nil
}

// Start watches the film, again and again.
func (p *Player) Start(ctx context.Context) {
	ctx, p.end = context.WithCancel(ctx)
	p.work.Go(func() {
		for ctx.Err() == nil {
			if err := p.watch(ctx); err != nil {
				p.fail(ctx, err)
				return
			}
		}
	})
}

// watch plays the film once. When it is told to end, it reads the rest at full speed.
func (p *Player) watch(ctx context.Context) error {
	body, err := p.request()
	if err != nil {
		return err
	}
	defer body.Close()
	rate := float64(p.size) / p.length
	digest, chunk := sha256.New(), make([]byte, int(rate*piece))
	clock := playback{}
	for read := int64(0); read < p.size; {
		asked := time.Now()
		n, err := io.ReadFull(body, chunk[:min(int64(len(chunk)), p.size-read)])
		read += int64(n)
		digest.Write(chunk[:n])
		if err != nil {
			return fmt.Errorf("the film ended after %d of %d bytes: %w", read, p.size, err)
		}
		if ctx.Err() != nil {
			continue
		}
		p.answers.Add(asked)
		p.note(clock.got(time.Now(), float64(read)/rate))
		select {
		case <-ctx.Done():
		case <-time.After(clock.ahead(time.Now(), float64(read)/rate)):
		}
	}
	if [sha256.Size]byte(digest.Sum(nil)) != p.sum {
		return errors.New("the film is not what it was")
	}
	return nil
}

// playback is the position of the picture. Times of the film are in seconds.
type playback struct {
	began time.Time // when it would have begun if it had never stopped
}

// got returns for how long the picture stood still before this much of the film was there.
func (b *playback) got(now time.Time, film float64) (still float64) {
	switch at := now.Sub(b.began).Seconds(); {
	case b.began.IsZero():
		if film >= buffered {
			b.began = now
		}
	case at > film:
		// It stopped when it had played everything before this piece, and continues with the piece.
		still = at - (film - piece)
		b.began = b.began.Add(time.Duration(still * float64(time.Second)))
	}
	return still
}

// ahead returns how long the buffer has no room.
func (b *playback) ahead(now time.Time, film float64) time.Duration {
	if b.began.IsZero() {
		return 0
	}
	at := now.Sub(b.began).Seconds()
	return max(0, time.Duration((film-at-buffered+piece)*float64(time.Second)))
}

func (p *Player) note(still float64) {
	if still > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stops.Number++
		p.stops.Seconds += still
	}
}

func (p *Player) fail(ctx context.Context, err error) {
	var timeout net.Error
	if ctx.Err() != nil && (errors.Is(err, net.ErrClosed) || errors.As(err, &timeout)) {
		return // it was closed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
}

// Stops returns how the picture stood still so far.
func (p *Player) Stops() Stops {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stops
}

// Answers returns the pieces of the film. The player requests a piece when the buffer has room for it.
func (p *Player) Answers() *workload.Answers { return &p.answers }

// Err returns the first error.
func (p *Player) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Check reads the rest of the film and compares all of it.
func (p *Player) Check(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = p.conn.SetDeadline(time.Now()) })()
	p.end()
	p.work.Wait()
	return p.Err()
}

// Close ends the player and returns its error.
func (p *Player) Close() error {
	p.end()
	err := p.conn.Close()
	p.work.Wait()
	return errors.Join(p.Err(), err)
}
