// Command workload runs in the containers of package criu's tests. It serves one line commands on TCP port 7000:
// "count" answers with a number that grows by one with each call on any connection, "do KIND" makes something that CRIU
// may be unable to dump, and answers "ok" or an error.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
)

var counter atomic.Int64

func main() {
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

func serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		command, argument, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "count":
			fmt.Fprintln(conn, counter.Add(1))
		case "do":
			if err := do(argument); err != nil {
				fmt.Fprintln(conn, "error:", err)
				continue
			}
			fmt.Fprintln(conn, "ok")
		default:
			fmt.Fprintln(conn, "error: unknown command")
		}
	}
}
