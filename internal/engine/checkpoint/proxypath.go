package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ProxyPath returns a PATH in which `criu` is this program, by a link in a directory, which it makes.
func ProxyPath(dir, executable string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make directory for the restore proxy: %w", err)
	}
	if err := Link(executable, filepath.Join(dir, "criu")); err != nil {
		return "", err
	}
	return dir + string(filepath.ListSeparator) + os.Getenv("PATH"), nil
}

// Link makes a link by which a program can be called under another name.
func Link(executable, link string) error {
	if target, err := os.Readlink(link); err == nil && target == executable {
		return nil
	}
	fresh := fmt.Sprintf("%s.%d", link, os.Getpid())
	// left by a killed process with our PID; if it is still there, Symlink fails
	_ = os.Remove(fresh)
	if err := errors.Join(os.Symlink(executable, fresh), os.Rename(fresh, link)); err != nil {
		return fmt.Errorf("make the link %s: %w", link, err)
	}
	return nil
}
