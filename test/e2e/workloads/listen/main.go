// Command listen listens like a server in Go: with net.Listen, which since Go 1.24 means MPTCP if the
// kernel has it.
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp4", ":7000") //nolint:gosec // On all interfaces, as servers do.
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	for {
		conn, err := listener.Accept()
		if err != nil {
			os.Exit(1)
		}
		_ = conn.Close()
	}
}
