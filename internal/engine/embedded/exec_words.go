package embedded

import (
	"bytes"
	"io"
	"sync"

	"github.com/godwit/godwit/internal/durable"
)

// runcWords is the beginning of runc's own message on the standard error of a process that it cannot run.
// runc writes the same to its log, from which the caller gets an error.
const runcWords = "exec failed: "

// withoutRunc passes on all output except possible messages of runc, which it keeps until it is known who
// wrote them.
type withoutRunc struct {
	to      io.Writer
	pidFile string // exists when the process runs

	mu   sync.Mutex
	kept []byte
}

func (w *withoutRunc) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.kept)+len(data) <= maxRuncWords && (w.kept != nil || bytes.HasPrefix(data, []byte(runcWords))) &&
		!durable.Exists(w.pidFile) {
		w.kept = append(w.kept, data...)
		return len(data), nil
	}
	if err := w.flush(); err != nil {
		return 0, err
	}
	return w.to.Write(data)
}

// maxRuncWords bounds the kept output: a message contains a path and a command.
const maxRuncWords = 64 << 10

func (w *withoutRunc) flush() error {
	if w.kept == nil {
		return nil
	}
	_, err := w.to.Write(w.kept)
	w.kept = nil
	return err
}

// end passes on the kept output, because the process has written it.
func (w *withoutRunc) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flush()
}
