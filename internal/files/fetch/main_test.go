package fetch

import (
	"os"
	"testing"

	"github.com/godwit/godwit/internal/files/filestest"
)

// TestMain runs the tests in a separate mount namespace, because they mount small file systems.
func TestMain(m *testing.M) { os.Exit(filestest.Isolated(0, m.Run)) }
