package lab

import (
	"fmt"
	"os"

	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/lab/workload/torture"
	"github.com/godwit/godwit/internal/lab/workload/tree"
)

// RunHidden runs this program in the role for which this package started it, if there is one: the init of a
// node, the relay, a program entering a node, or a workload. It does not return in that case. Call it first
// in main, and in the TestMain of tests that make labs from the test program itself.
func RunHidden() {
	if len(os.Args) < 2 {
		return
	}
	code, err := 0, error(nil)
	args := os.Args[2:]
	switch {
	case os.Args[1] == "lab-init" && len(args) == 3:
		err = runInit(args[0], args[1], args[2])
	case os.Args[1] == "lab-relay" && len(args) == 1:
		err = punctualRelay(args[0])
	case os.Args[1] == "lab-relay" && len(args) == 2:
		err = runRelay(args[0])
	case os.Args[1] == "lab-enter":
		code, err = runEnter(args)
	case os.Args[1] == "lab-child":
		code, err = runChild(args)
	case os.Args[1] == pages.Command:
		err = pages.Run(args, os.Stdout)
	case os.Args[1] == tree.Command:
		err = tree.Run(args, os.Stdout)
	case os.Args[1] == torture.Command:
		err = torture.Run(args, os.Stdout)
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "godwit-lab:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
