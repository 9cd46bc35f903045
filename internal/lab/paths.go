package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Directories of labs on the machine, and in a node.
const (
	// RunDirectory holds files that live as long as a lab: its description, sockets and logs.
	RunDirectory = "/run/godwit-lab"
	// StateDirectory holds each node's state directory.
	StateDirectory = "/var/lib/godwit-lab"

	nodeStateDirectory = "/var/lib/godwit"     // in a node, the node's own
	nodePrograms       = "/run/godwit-lab/bin" // in a node, the programs of the lab
	programName        = "godwit"
	nodeProgram        = nodePrograms + "/" + programName
	nodeHelper         = nodePrograms + "/godwit-lab"
	agentSocket        = "/run/godwit/agent.sock"
	agentPort          = 7443

	// createdMark lists the directories that a lab created on the machine to mount over them.
	createdMark = StateDirectory + "/.made-mount-point"
)

func runDirectory(lab string) string              { return filepath.Join(RunDirectory, lab) }
func machineDirectory(lab, machine string) string { return filepath.Join(runDirectory(lab), machine) }
func statePath(lab string) string                 { return filepath.Join(runDirectory(lab), "lab.json") }
func relaySocket(lab string) string               { return filepath.Join(runDirectory(lab), "relay.sock") }
func nodeStatePath(lab, node string) string       { return filepath.Join(StateDirectory, lab, node) }

// lockFile takes the lock at path, waiting for it, and returns a function that releases it.
func lockFile(path string) (unlock func(), err error) {
	for {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the last lab went down, with the directory, at this moment
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if err := flock(f, unix.LOCK_EX); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if sameFile(f, path) {
			return func() { _ = f.Close() }, nil
		}
		// The lab was taken down, and its lock removed, during the wait: the lock of a removed file locks
		// nothing.
		_ = f.Close()
	}
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func sameFile(f *os.File, path string) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(held, there)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
