package fetch

import (
	"os"
	"testing"

	"github.com/godwit/godwit/internal/files/filestest"
)

// TestMain runs the tests in a mount namespace of their own: small file systems are mounted.
func TestMain(m *testing.M) { os.Exit(filestest.Isolated(0, m.Run)) }
