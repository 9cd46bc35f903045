package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// MaxErrorText bounds how much of a command's error output is kept.
const MaxErrorText = 1500

// Timed is the output of TimeCommand.
type Timed struct {
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// TimeCommand runs a command, with no input or output, and writes its duration to out, as JSON. TimeCommand
// runs as a process in a node of the lab: the time to enter the node does not count.
func TimeCommand(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("no command to time")
	}
	// A file, not a pipe: processes that the command leaves running may keep it open.
	complaints, err := os.CreateTemp("", "godwit-bench-*")
	if err != nil {
		return fmt.Errorf("time %s: %w", args[0], err)
	}
	defer os.Remove(complaints.Name())
	defer complaints.Close()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = complaints
	began := time.Now()
	err = cmd.Run()
	timed := Timed{Seconds: time.Since(began).Seconds()}
	if err != nil {
		timed.Error = fmt.Sprintf("%s: %v%s", strings.Join(args, " "), err, Tail(complaints.Name()))
	}
	return json.NewEncoder(out).Encode(timed)
}

// ReadyFD is the descriptor on which a command of TimeReady reports that it is ready.
const ReadyFD = "3"

// TimeReady is TimeCommand for a command that reports with a byte on descriptor 3 that it is ready, and
// continues: the first line of the output is the time until then.
func TimeReady(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("no command to time")
	}
	ready, itsEnd, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("time %s: %w", args[0], err)
	}
	defer ready.Close()
	complaints, err := os.CreateTemp("", "godwit-bench-*")
	if err != nil {
		return errors.Join(fmt.Errorf("time %s: %w", args[0], err), itsEnd.Close())
	}
	defer os.Remove(complaints.Name())
	defer complaints.Close()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr, cmd.ExtraFiles = complaints, []*os.File{itsEnd}
	began := time.Now()
	err = cmd.Start()
	if closeErr := itsEnd.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("time %s: %w", args[0], err)
	}
	told := json.NewEncoder(out)
	if _, err := ready.Read(make([]byte, 1)); err == nil {
		if err := told.Encode(Timed{Seconds: time.Since(began).Seconds()}); err != nil {
			return err
		}
	} // or it has ended, or closed the descriptor, without a byte
	err = cmd.Wait()
	timed := Timed{Seconds: time.Since(began).Seconds()}
	if err != nil {
		timed.Error = fmt.Sprintf("%s: %v%s", strings.Join(args, " "), err, Tail(complaints.Name()))
	}
	return told.Encode(timed)
}

// Tail returns the end of a file, for an error message.
func Tail(path string) string {
	data, err := os.ReadFile(path)
	text := strings.TrimSpace(string(data))
	if err != nil || text == "" {
		return ""
	}
	return ": " + text[max(0, len(text)-MaxErrorText):]
}

// ParseTimed parses the output of TimeCommand.
func ParseTimed(text string) (float64, error) {
	var timed Timed
	if err := json.Unmarshal([]byte(text), &timed); err != nil {
		return 0, fmt.Errorf("time of a command %.80q: %w", text, err)
	}
	if timed.Error != "" {
		return 0, errors.New(timed.Error)
	}
	return timed.Seconds, nil
}
