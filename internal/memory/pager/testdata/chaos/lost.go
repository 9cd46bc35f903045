package main

import (
	"flag"
	"fmt"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var losing = flag.Bool("lost", false, "only look at all pages again and again, and tell how many cannot be read")

// lookForLost looks at all pages, of which some may be lost for good: a child is then missing them, too.
func lookForLost(arenas []*arena) {
	debug.SetPanicOnFault(true)
	for {
		lost := 0
		for _, a := range arenas {
			before := lost
			for page := range a.pages {
				if readable(a, page) {
					continue
				}
				if lost++; lost == before+1 {
					wantLost(a.base + uintptr(page)*pageSize)
				}
			}
		}
		fmt.Println("lost", lost)
		time.Sleep(10 * time.Millisecond)
	}
}

func readable(a *arena, page int) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	a.check(page)
	return true
}

// wantLost has a child read a lost page, on which it must die.
func wantLost(address uintptr) {
	pid, child := clone()
	if child {
		if *(*byte)(unsafe.Pointer(address)) == 0 {
			exit(1)
		}
		exit(2)
	}
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &status, 0, nil); err != unix.EINTR {
			break
		}
	}
	if !status.Signaled() || status.Signal() != unix.SIGBUS {
		fmt.Printf("BAD child that reads a lost page: status %#x\n", int(status))
	}
}
