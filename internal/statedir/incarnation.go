package statedir

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// machineIDFile identifies the machine, see machine-id(5). A machine without it has no name, and only its
// states are distinguished from each other.
const machineIDFile = "/etc/machine-id"

const (
	incarnationName = "incarnation.json" // in the state directory
	// in the run directory: the last opening of the state directory
	openingName = "opening"
	maxFile     = 4 << 10
)

// identity is the durable part of a state's incarnation.
type identity struct {
	// ID is random, and created with the state.
	ID string `json:"id"`
	// Machine on which the state was made, as machineName has it.
	Machine string `json:"machine"`
	// Opening is a new random number for each start of an agent, Before is the previous one. The run
	// directory has the last one, too, until the next boot: a state that was put back meanwhile has an
	// older one.
	Opening string `json:"opening"`
	Before  string `json:"before"`
}

// identify finds the incarnation, and makes a new one durable if needed.
func (d *Dir) identify(stateDir, runDir, machineFile string) error {
	machine, err := machineName(machineFile)
	if err != nil {
		return err
	}
	path, seenPath := filepath.Join(stateDir, incarnationName), filepath.Join(runDir, openingName)
	text, err := readBounded(path)
	if err != nil {
		return fmt.Errorf("incarnation of the state: %w", err)
	}
	seen, err := readBounded(seenPath)
	if err != nil {
		return fmt.Errorf("incarnation of the state: %w", err)
	}
	next, renewed := decide(text, strings.TrimSpace(string(seen)), machine, randomHex)
	data, err := json.Marshal(next)
	if err != nil {
		return err
	}
	err = kernel.WriteFileAtomic(path, append(data, '\n'), 0o600)
	if err == nil {
		err = kernel.WriteFileAtomic(seenPath, []byte(next.Opening+"\n"), 0o600)
	}
	// an agent must start on a full disk: the opening stays the last one
	if err != nil && (renewed != "" || !full(err)) {
		return fmt.Errorf("incarnation of the state: %w", err)
	}
	d.Incarnation, d.Renewed = next.name(), renewed
	return nil
}

// decide returns the incarnation of a state that is opened now: text is the state's own record, empty if
// there is none, seen the opening in the run directory. The state is written before the run directory; so
// an agent that was killed in between leaves the state's last opening but one there, which is then
// accepted.
func decide(text []byte, seen, machine string, random func() string) (next identity, renewed string) {
	var last identity
	fresh := func(why string) (identity, string) {
		return identity{ID: random(), Machine: machine, Opening: random()}, why
	}
	switch {
	case len(text) == 0:
		return fresh("the state has none yet")
	case json.Unmarshal(text, &last) != nil || !last.valid():
		return fresh("the file that names it is damaged")
	case last.Machine != machine:
		return fresh("the state was made on another machine")
	case seen != "" && seen != last.Opening && seen != last.Before:
		return fresh("the state was put back to an older one since this machine was booted")
	}
	next = last
	if seen == "" || seen == last.Opening {
		next.Before, next.Opening = last.Opening, random()
	}
	return next, ""
}

// full reports whether an error is that of a full disk.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// name returns the incarnation for messages, journals and logs.
func (i identity) name() string { return i.Machine + "-" + i.ID }

func (i identity) valid() bool {
	return isHex(i.ID) && isHex(i.Opening) && (i.Before == "" || isHex(i.Before)) &&
		len(i.Machine) <= idDigits
}

const idDigits = 16

func randomHex() string {
	var b [idDigits / 2]byte
	_, _ = rand.Read(b[:]) // It never fails.
	return hex.EncodeToString(b[:])
}

func isHex(s string) bool { return len(s) == idDigits && strings.Trim(s, "0123456789abcdef") == "" }

// machineName is a digest of the machine's id, which itself should stay on the machine
// (machine-id(5)); "0" without one.
func machineName(path string) (string, error) {
	text, err := readBounded(path)
	if err != nil {
		return "", fmt.Errorf("id of the machine: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "0", nil
	}
	digest := hmac.New(sha256.New, []byte("godwit state"))
	digest.Write([]byte(id))
	return hex.EncodeToString(digest.Sum(nil))[:8], nil
}

// readBounded reads a small file; a missing file is empty.
func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	return data, errors.Join(err, file.Close())
}
