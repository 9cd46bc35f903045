package pages

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/godwit/godwit/internal/lab/workload"
)

// Questions to a workload that listens, one word per line. The answer is a line of JSON.
const (
	AskTell  = "tell"  // report its measurements so far: Accessed
	AskRest  = "rest"  // stop scanning or jumping: Accessed
	AskHot   = "hot"   // read all hot memory, then report: Accessed
	AskCheck = "check" // check all of its memory: Result
	// Scan and Jump start an access pattern; the answer comes at once: Accessed.
)

const maxQuestion = 16

// Asker is the client of a workload that listens.
type Asker struct {
	conn    io.ReadWriter
	answers *bufio.Reader
}

// NewAsker sends questions over a connection, one after the other.
func NewAsker(conn io.ReadWriter) *Asker {
	return &Asker{conn: conn, answers: bufio.NewReader(conn)}
}

// Ask sends one of the questions and reads the answer.
func (a *Asker) Ask(question string, answer any) error {
	if _, err := fmt.Fprintln(a.conn, question); err != nil {
		return fmt.Errorf("ask the workload to %s: %w", question, err)
	}
	line, err := a.answers.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, answer)
	}
	if err != nil {
		return fmt.Errorf("ask the workload to %s: answer %.80q: %w", question, line, err)
	}
	return nil
}

// listen answers questions from now on, if the configuration says so, until the returned function is
// called.
func (w *world) listen() (func(), error) {
	if w.config.Listen == 0 {
		return func() {}, nil
	}
	// A thread that waits for a page keeps its processor of Go's runtime; the answering thread needs one,
	// too. And nothing may wait for all threads to stop, as a garbage collection does: there is little
	// garbage.
	runtime.GOMAXPROCS(w.config.Threads + 2)
	debug.SetGCPercent(-1)
	end, err := workload.Listen(w.config.Listen, w.serve)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Command, err)
	}
	return end, nil
}

// serve answers a client until it goes.
func (w *world) serve(conn net.Conn) {
	defer conn.Close()
	questions := bufio.NewScanner(conn)
	questions.Buffer(make([]byte, maxQuestion), maxQuestion)
	answers := json.NewEncoder(conn)
	for questions.Scan() {
		answer, err := w.answer(strings.TrimSpace(questions.Text()))
		if err != nil {
			answer = struct {
				Error string `json:"error"`
			}{err.Error()}
		}
		if answers.Encode(answer) != nil {
			return // it no longer listens
		}
	}
}

func (w *world) answer(question string) (any, error) {
	switch question {
	case AskTell:
		return w.tell()
	case AskRest, Scan, Jump:
		err := w.each(func(p *part) {
			if p.access = question; question == AskRest {
				p.access = ""
			}
		})
		if err != nil {
			return nil, err
		}
		return w.tell()
	case AskHot:
		if err := w.each(func(p *part) { p.checkFirst(p.hot) }); err != nil {
			return nil, err
		}
		return w.tell()
	case AskCheck:
		before := w.tally.Checked.Load()
		if err := w.each(func(p *part) { p.checkFirst(uint64(len(p.written))) }); err != nil {
			return nil, err
		}
		result := w.result()
		result.Checked -= before
		return result, nil
	}
	return nil, fmt.Errorf("no such question: %q", question)
}

// checkFirst checks the first pages.
func (p *part) checkFirst(pages uint64) {
	for i := range pages {
		p.check(i)
	}
}

// each makes all threads do something, each with its own part, between two pages.
func (w *world) each(do func(p *part)) error {
	var doing sync.WaitGroup
	for _, p := range w.parts {
		doing.Add(1)
		select {
		case p.asked <- func() { defer doing.Done(); do(p) }:
		case <-w.stopped:
			return errors.New("the workload ends")
		}
	}
	doing.Wait()
	return nil
}

func (w *world) tell() (Accessed, error) {
	var mu sync.Mutex
	sum := &waits{}
	err := w.each(func(p *part) {
		mu.Lock()
		defer mu.Unlock()
		sum.merge(p.waits)
	})
	if err != nil {
		return Accessed{}, err
	}
	return sum.accessed(w.tally.Bad.Load()), nil
}
