package tree

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/godwit/godwit/internal/lab/workload"
)

// Ready is the line that the workload prints when its files exist.
const Ready = "ready"

// Result is the workload's answer.
type Result struct {
	Files   int    `json:"files"`
	Written uint64 `json:"written"` // writes since the files were made
	Bad     int    `json:"bad"`     // wrong files, if files were checked
	// Error describes the first wrong file.
	Error string `json:"error,omitempty"`
}

func (r *Result) bad(err error) {
	if r.Bad++; r.Error == "" {
		r.Error = err.Error()
	}
}

// Run is the workload. It returns when it is asked to end (SIGTERM), after the current write.
func Run(args []string, out io.Writer) error {
	config, err := parse(args)
	if err != nil {
		return fmt.Errorf("%s: %w", Command, err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	t, err := open(config)
	if err != nil {
		return fmt.Errorf("%s: %w", Command, err)
	}
	if config.Verify {
		return json.NewEncoder(out).Encode(t.verify())
	}
	k := &keeper{tree: t}
	closeListener, err := workload.Listen(config.Listen, k.serve)
	if err != nil {
		return fmt.Errorf("%s: %w", Command, err)
	}
	defer closeListener()
	fmt.Fprintln(out, Ready)
	if err := k.work(end); err != nil {
		return fmt.Errorf("%s: %w", Command, err)
	}
	return nil
}

// keeper writes the files and answers questions about them.
type keeper struct {
	mu    sync.Mutex
	tree  *tree
	rests bool
}

// work rewrites files until a signal comes. It does not make up for writes that it missed while it could
// not run.
func (k *keeper) work(end <-chan os.Signal) error {
	if k.tree.Rate == 0 {
		<-end
		return nil
	}
	ticker := time.NewTicker(time.Second / time.Duration(k.tree.Rate))
	defer ticker.Stop()
	for {
		select {
		case <-end:
			return nil
		case <-ticker.C:
		}
		if err := k.turn(); err != nil {
			return err
		}
	}
}

func (k *keeper) turn() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rests {
		return nil
	}
	return k.tree.next()
}

// Questions on a connection, one byte each. The answer is a line of JSON: a Result.
const (
	AskTell   = 't' // report the number of writes
	AskVerify = 'v' // check all files
	AskFlip   = 'f' // change the byte in the middle of the first file
	AskNext   = 'n' // rewrite one file
	AskRest   = 'r' // stop writing by itself
)

// Ask sends one of the questions and reads the answer.
func Ask(conn io.ReadWriter, question byte) (Result, error) {
	var result Result
	if _, err := conn.Write([]byte{question}); err != nil {
		return result, fmt.Errorf("ask the files' keeper: %w", err)
	}
	if err := json.NewDecoder(conn).Decode(&result); err != nil {
		return result, fmt.Errorf("ask the files' keeper: %w", err)
	}
	return result, nil
}

func (k *keeper) serve(conn net.Conn) {
	defer conn.Close()
	answers, question := json.NewEncoder(conn), make([]byte, 1)
	for {
		if _, err := conn.Read(question); err != nil {
			return // the connection has ended
		}
		if answers.Encode(k.answer(question[0])) != nil {
			return
		}
	}
}

// answer answers between two writes.
func (k *keeper) answer(question byte) Result {
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	switch question {
	case AskTell:
	case AskVerify:
		return k.tree.verify()
	case AskFlip:
		err = k.tree.flip()
	case AskNext:
		err = k.tree.next()
	case AskRest:
		k.rests = true
	default:
		err = errors.New("no such question")
	}
	result := Result{Files: k.tree.Files, Written: k.tree.written}
	if err != nil {
		result.bad(err)
	}
	return result
}
