// Command trial is the program of the trial's container in the tests of package doctor, as small as possible.
package main

import (
	"context"
	"os"

	"github.com/godwit/godwit/internal/doctor"
)

func main() {
	if err := doctor.ServeTrial(context.Background()); err != nil {
		os.Exit(1)
	}
}
