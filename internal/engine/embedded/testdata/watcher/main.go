// Command watcher prints the names of files that are made in the given directories, as inotify reports
// them.
package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"
)

func main() {
	fd, err := syscall.InotifyInit()
	if err != nil {
		panic(err)
	}
	for _, dir := range os.Args[1:] {
		if _, err := syscall.InotifyAddWatch(fd, dir, syscall.IN_CREATE); err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	buffer := make([]byte, 4096)
	for {
		n, err := syscall.Read(fd, buffer)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			panic(err)
		}
		for at := 0; at < n; {
			event := (*syscall.InotifyEvent)(unsafe.Pointer(&buffer[at]))
			name := buffer[at+syscall.SizeofInotifyEvent:][:event.Len]
			fmt.Println("made", strings.TrimRight(string(name), "\x00"))
			at += syscall.SizeofInotifyEvent + int(event.Len)
		}
	}
}
