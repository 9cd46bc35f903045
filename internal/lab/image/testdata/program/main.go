// Command program is the program in the test's image: it waits, or prints that it is there.
package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Println("what runs")
		return
	}
	for {
		time.Sleep(time.Hour)
	}
}
