package workload

import (
	"context"
	"fmt"
	"net"
)

// Listen serves each connection to a TCP port until the returned function is called; port 0 means none. It
// is for programs that are moved to another machine with their connections.
func Listen(port int, serve func(net.Conn)) (end func(), err error) {
	if port == 0 {
		return func() {}, nil
	}
	config := net.ListenConfig{}
	config.SetMultipathTCP(false) // CRIU cannot save such sockets
	listener, err := config.Listen(context.Background(), "tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // it was closed
			}
			go serve(conn)
		}
	}()
	return func() { _ = listener.Close() }, nil
}
