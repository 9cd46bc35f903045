// Command workload32 is a 32-bit program that speaks like the workload in C.
package main

import (
	"bufio"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

func main() {
	var bad, done atomic.Int64
	memory := make([]uint32, 1<<20)
	go func() {
		for n := uint32(1); ; n++ {
			for i := int(n%64) * 1024; i < len(memory); i += 1 << 16 {
				memory[i] += n
				if memory[i+1]+n != memory[i] {
					bad.Add(1)
				}
				memory[i+1] = memory[i]
			}
			done.Add(1)
			time.Sleep(200 * time.Microsecond)
		}
	}()
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Printf("bad %d done %d\n", bad.Load(), done.Load())
	}
}
