package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded/output"
)

const (
	// Checks of a starting container follow each other faster than those of a running one, because clients
	// wait.
	firstCheckPause = 100 * time.Millisecond
	lastCheckPause  = 2 * time.Second
	portsPause      = 10 * time.Millisecond
	// Limits of a container's last output in an error message.
	lastWordsLines, lastWordsBytes = 5, 600
)

// probation finds out whether a started container is healthy. It uses the first of these criteria that
// applies: its health check succeeds; it listens on all ports on which it listened where it ran before; it
// has run for some seconds.
type probation struct {
	execs *execs
	place container
	d     engine.Definition
	ports []engine.Port
}

func newProbation(x *execs, place container, d engine.Definition, ports []engine.Port) *probation {
	return &probation{execs: x, place: place, d: d, ports: ports}
}

// await returns when the container is healthy, and by which criterion. Error: ErrUnhealthy.
func (p *probation) await(ctx context.Context) (how string, err error) {
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, p.d.StartPatience())
	defer cancel()
	pause, why := p.firstPause(), "its health is not known yet"
	for {
		if ended, err := p.ended(); err != nil || ended != "" {
			return "", errors.Join(err, p.unhealthy(ended))
		}
		how, now := p.look(waiting, time.Since(began))
		if how != "" {
			return fmt.Sprintf("%s after %.1f s", how, time.Since(began).Seconds()), nil
		}
		why = cmp.Or(now, why)
		select {
		case <-waiting.Done():
			if ctx.Err() != nil {
				return "", fmt.Errorf("wait for container %s to become healthy (%s): %w", p.d.Name, why,
					context.Cause(ctx))
			}
			return "", p.unhealthy(fmt.Sprintf("%s, %s after it was started", why, p.d.StartPatience()))
		case <-time.After(pause):
		}
		pause = p.nextPause(pause)
	}
}

func (p *probation) firstPause() time.Duration {
	if p.d.Health != nil {
		return firstCheckPause
	}
	return portsPause
}

func (p *probation) nextPause(pause time.Duration) time.Duration {
	if p.d.Health == nil {
		return pause
	}
	return min(2*pause, lastCheckPause, time.Duration(p.d.Health.Complete().Interval*float64(time.Second)))
}

// unhealthy returns an error with the container's last output, because its files may be gone when the error
// is read.
func (p *probation) unhealthy(why string) error {
	if why == "" {
		return nil
	}
	err := fmt.Errorf("%w: %s: %s", engine.ErrUnhealthy, p.d.Name, why)
	if words := p.lastWords(); words != "" {
		err = fmt.Errorf("%w; its last output: %s", err, words)
	}
	return err
}

// ended returns how the container has ended, if it has.
func (p *probation) ended() (string, error) {
	ended, err := hasEnded(p.place)
	if err != nil || !ended {
		return "", err
	}
	var was record
	if err := durable.Load(p.place.record(), &was); err != nil {
		return "", err
	}
	return fmt.Sprintf("it has ended with exit code %d", was.ExitCode), nil
}

// look checks once. It returns how the container is known to be healthy, or why it is not; neither if ctx
// ended meanwhile.
func (p *probation) look(ctx context.Context, ran time.Duration) (how, why string) {
	switch {
	case p.d.Health != nil:
		if err := p.execs.checkHealth(ctx, p.place, p.d); err != nil {
			if ctx.Err() != nil {
				return "", "" // the check did not get its time
			}
			return "", err.Error()
		}
		return "its health check succeeded", ""
	case len(p.ports) > 0:
		if missing := p.missingPorts(); len(missing) > 0 {
			return "", "it does not listen on " + engine.DescribePorts(missing)
		}
		return "it listens on " + engine.DescribePorts(p.ports), ""
	case ran >= engine.SettledAfter:
		return "it runs", ""
	}
	return "", fmt.Sprintf("it has run for less than %s", engine.SettledAfter)
}

func (p *probation) missingPorts() []engine.Port {
	var live liveState
	if err := durable.Load(p.place.runtime(), &live); err != nil {
		return p.ports // the container has just ended
	}
	open, err := portsOf(live.Init.PID)
	if err != nil {
		return p.ports
	}
	isOpen := func(port engine.Port) bool { return slices.Contains(open, port) }
	return slices.DeleteFunc(slices.Clone(p.ports), isOpen)
}

// lastWords returns the last lines of a container's output, in one line.
func (p *probation) lastWords() string {
	file, err := os.Open(p.place.log())
	if err != nil {
		return ""
	}
	defer file.Close()
	if output.SeekTail(file, lastWordsLines) != nil {
		return ""
	}
	var words strings.Builder
	for reader := output.NewReader(file); ; {
		entry, err := reader.Next()
		if err != nil {
			break
		}
		words.Write(entry.Data)
	}
	text := strings.Join(strings.FieldsFunc(words.String(),
		func(r rune) bool { return r == '\n' || r == '\r' }), " | ")
	if len(text) > lastWordsBytes {
		text = "…" + text[len(text)-lastWordsBytes:]
	}
	return strings.ToValidUTF8(text, "?")
}

// checkHealth runs a container's health check once.
func (x *execs) checkHealth(ctx context.Context, place container, d engine.Definition) error {
	h := d.Health.Complete()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(h.Timeout*float64(time.Second)))
	defer cancel()
	said := &tail{}
	session, err := x.makeExec(place, d, engine.Exec{Args: h.Command, Stdout: said, Stderr: said})
	if err != nil {
		return fmt.Errorf("its health check cannot be run: %w", err)
	}
	defer os.RemoveAll(session.dir)
	code, err := x.runExec(ctx, place.id, session, engine.Exec{Args: h.Command, Stdout: said, Stderr: said})
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("its health check takes longer than %g s%s", h.Timeout, said)
	case err != nil:
		return fmt.Errorf("its health check cannot be run: %w", err)
	case code != 0:
		return fmt.Errorf("its health check fails with exit code %d%s", code, said)
	}
	return nil
}

// tail keeps the end of the data written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - lastWordsBytes; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// String returns the tail as a part of a sentence.
func (t *tail) String() string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(t.kept), "?")), " ")
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}
