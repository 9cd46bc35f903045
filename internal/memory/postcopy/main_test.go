package postcopy

import (
	"os"
	"testing"

	"github.com/godwit/godwit/internal/lab"
)

// TestMain lets labs be made from the test program.
func TestMain(m *testing.M) {
	lab.RunHidden()
	os.Exit(m.Run())
}
