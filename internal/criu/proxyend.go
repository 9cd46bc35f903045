package criu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// end ends what still runs, and reports a failure to the agent. Nothing runs before the agent has allowed
// it: CRIU kills what it made when it gets no answer. If CRIU cannot be told that the processes may run, or
// fails later but reports that itself, nothing has run either, and the record is withdrawn. Otherwise the
// record stays: no copy is better than two.
func (p *proxyProcess) end(err error) error {
	if p.real != nil {
		p.endReal(err)
	}
	if err != nil {
		p.endPlaceholder()
	}
	if err == nil || p.agent == nil {
		return err
	}
	if cause := explainFile(filepath.Join(p.workDir, restoreLog)); cause != "" {
		err = fmt.Errorf("%w: %s", err, cause)
	}
	uncertain := p.allowed
	if p.allowed && (p.refused || !p.freed) {
		if removeErr := kernel.RemoveDurable(p.record); removeErr != nil {
			err = errors.Join(err, removeErr)
		} else {
			uncertain = false
		}
	}
	p.note(err.Error())
	// If the agent is gone, nobody asks.
	_ = p.agent.send(proxyMessage{Kind: kindFailed, Error: err.Error(), Uncertain: uncertain})
	return errNoted
}

// note writes to CRIU's log, because standard error is the container's.
func (p *proxyProcess) note(text string) {
	f, err := os.OpenFile(filepath.Join(p.workDir, restoreLog), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return // nobody is left to be told
	}
	defer f.Close()
	_, _ = fmt.Fprintln(f, "godwit restore proxy:", text) // as above
}

// restoreLog is runc's name of CRIU's log.
const restoreLog = "restore.log"

// endPatience is how long CRIU may take to kill what it restored.
const endPatience = 5 * time.Second

func (p *proxyProcess) endReal(err error) {
	p.real.close()
	if err != nil {
		kill := time.AfterFunc(endPatience, func() { p.real.signalKill() })
		defer kill.Stop()
	}
	if p.handover != nil { // otherwise this process would see a stop of CRIU that another process must see
		if failed := <-p.handover; failed != nil {
			p.note(failed.Error())
		}
	}
	_ = p.real.wait() // the earlier error counts
	if err != nil {
		p.killRest()
	}
}

// hopeless matches lines in CRIU's log after which a restore cannot succeed: a process failed in the code
// that restores it (criu/pie/restorer.c), or CRIU kills what it made (criu/cr-restore.c).
var hopeless = regexp.MustCompile(`(?m)^(\(\d+\.\d+\) *)?(pie: \d+: Error \(criu/pie/restorer\.c:|` +
	`Error \(criu/cr-restore\.c:\d+\): Killing processes because of failure on restore)`)

// watchFailure kills CRIU if the restore has failed for good and CRIU neither reports that nor logs any
// more. The returned function ends the watch. CRIU 4.2 hangs in two ways if a process dies in the code that
// restores it. Either CRIU and another process wait for each other. Or CRIU kills the first process, which
// waits for others that only CRIU, their tracer, can reap. No process of the container has run by then,
// because CRIU has not reached pre-resume. If CRIU stayed hung, the source would never learn of the
// failure, and the container would stay frozen.
func (p *proxyProcess) watchFailure(patience time.Duration) (stop func()) {
	over := make(chan struct{})
	go func() {
		ticks := time.NewTicker(patience)
		defer ticks.Stop()
		for before := -1; ; {
			select {
			case <-over:
				return
			case <-ticks.C:
			}
			log, err := os.ReadFile(filepath.Join(p.workDir, restoreLog))
			if err != nil || !hopeless.Match(log[:min(len(log), maxLog)]) {
				continue
			}
			if len(log) == before {
				p.stuck.Store(true)
				p.real.signalKill()
				// processes that CRIU made have its end of the connection
				_ = p.real.conn.SetDeadline(time.Unix(1, 0))
				return
			}
			before = len(log)
		}
	}()
	return func() { close(over) }
}

// endPlaceholder reports to the engine that the process that it knows has ended, if the placeholder never
// became the container's first process, or that process has ended before it ran.
func (p *proxyProcess) endPlaceholder() {
	if p.placeholder == nil {
		return
	}
	if err := p.placeholder.End(); err != nil {
		p.note(err.Error())
	}
}

// killChildren kills the restored first process, a child of this one, and with it everything in its PID
// namespace. CRIU does so itself, unless it was killed: then the processes would wait for it for ever.
func killChildren() {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return // the pattern is constant and valid
	}
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // a thread that has ended
		}
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil {
				// a child that was not waited for keeps its PID: it is this process or a zombie
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}
