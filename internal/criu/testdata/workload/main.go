// Command workload runs in the containers of package criu's tests. It serves one-line commands on TCP port
// 7000. "count" answers with a number that grows by one with each call on any connection. "do KIND" makes
// something that CRIU may be unable to dump, and "undo" removes it; both answer "ok" or an error. "events"
// answers with the pending inotify events, "setting NAME" with a kernel setting.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

var (
	counter atomic.Int64
	doing   sync.Mutex
)

func init() { runtime.LockOSThread() } // main stays on the first thread, for dead-leader

func main() {
	if len(os.Args) > 1 {
		role(os.Args[1])
		return
	}
	config := net.ListenConfig{}
	config.SetMultipathTCP(false)
	listener, err := config.Listen(context.Background(), "tcp", ":7000")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			os.Exit(2)
		}
		go serve(conn)
	}
}

// role runs a child's role.
func role(name string) {
	switch name {
	case "sleep":
		time.Sleep(time.Hour)
	case "leader":
		lead(os.Args[2:]...)
	case "subreaper":
		reap()
	case "sigtrap":
		blockTrap()
	case "dead-leader":
		go time.Sleep(time.Hour)
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0) // ends this thread only
	}
}

func serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		command, argument, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "count":
			fmt.Fprintln(conn, counter.Add(1))
		case "events":
			fmt.Fprintln(conn, events())
		case "setting":
			fmt.Fprintln(conn, setting(argument))
		case "do":
			doing.Lock()
			answer(conn, do(argument))
			doing.Unlock()
		case "undo":
			doing.Lock()
			undo()
			doing.Unlock()
			answer(conn, nil)
		default:
			fmt.Fprintln(conn, "error: unknown command")
		}
	}
}

func answer(conn net.Conn, err error) {
	if err != nil {
		fmt.Fprintln(conn, "error:", err)
		return
	}
	fmt.Fprintln(conn, "ok")
}
