// Command program is what the image of the test has: it waits, or says that it is there.
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
