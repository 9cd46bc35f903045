package doctor

import (
	"bufio"
	"context"
	"fmt"
	"net"
)

// trialAddress is where the program in the trial's container listens. It is alone in its network namespace,
// so any port is free.
const trialAddress = "127.0.0.1:7443"

// ServeTrial is the program that runs inside the trial's container: it answers each line on a connection
// with the number of lines so far, so that an answer shows that both the connection and the memory
// survived.
func ServeTrial(ctx context.Context) error {
	config := net.ListenConfig{}
	// CRIU cannot dump MPTCP sockets, and Go listens with MPTCP by default.
	config.SetMultipathTCP(false)
	listener, err := config.Listen(ctx, "tcp4", trialAddress)
	if err != nil {
		return fmt.Errorf("trial server: %w", err)
	}
	defer listener.Close()
	connection, err := listener.Accept()
	if err != nil {
		return fmt.Errorf("trial server: %w", err)
	}
	defer connection.Close()
	lines := bufio.NewScanner(connection)
	for count := 1; lines.Scan(); count++ {
		if _, err := fmt.Fprintln(connection, count); err != nil {
			return fmt.Errorf("trial server: %w", err)
		}
	}
	return lines.Err()
}
