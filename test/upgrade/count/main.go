// Count prints one number after another, and checks between them that its memory is what it wrote there.
package main

import (
	"fmt"
	"os"
	"time"
)

const (
	pages     = 2048
	pageBytes = 4096
	pace      = 20 * time.Millisecond
)

func main() {
	memory := make([]byte, pages*pageBytes)
	for page := range pages {
		memory[page*pageBytes] = mark(page)
	}
	for number := 0; ; number++ {
		page := number % pages
		if got := memory[page*pageBytes]; got != mark(page) {
			fmt.Printf("page %d holds %d, not %d\n", page, got, mark(page))
			os.Exit(1)
		}
		fmt.Println(number)
		time.Sleep(pace)
	}
}

func mark(page int) byte { return byte(page%251 + 1) }
