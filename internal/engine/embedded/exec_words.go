package embedded

import (
	"bytes"
	"io"
	"sync"

	"github.com/godwit/godwit/internal/durable"
)

// runcWords begin what runc itself says on the standard error of a process that it cannot run. It
// says the same in its log, of which the caller gets an error.
const runcWords = "exec failed: "

// withoutRunc passes on what is written, but for what may be runc's words: these are kept until it
// is known whose they are.
type withoutRunc struct {
	to      io.Writer
	pidFile string // is there when the process runs

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

// maxRuncWords bounds what is kept: with a path and a command in it.
const maxRuncWords = 64 << 10

func (w *withoutRunc) flush() error {
	if w.kept == nil {
		return nil
	}
	_, err := w.to.Write(w.kept)
	w.kept = nil
	return err
}

// end passes on what was kept: the process has said it.
func (w *withoutRunc) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flush()
}
