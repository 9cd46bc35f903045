package copies

import (
	"fmt"
	"os"
	"testing"

	"github.com/godwit/godwit/internal/files/filestest"
	"github.com/godwit/godwit/internal/lab/workload/torture"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == torture.Command {
		if err := torture.Run(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(filestest.Isolated(0, m.Run))
}
