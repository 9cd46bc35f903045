package lab

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
)

// playGodwit acts as the commands of godwit that Up calls. It records its arguments in the node's state
// directory, so that the tests see that the right command reached the right node.
func playGodwit(args []string) int {
	err := error(nil)
	switch {
	case args[0] == "agent":
		err = playAgent(args)
	case len(args) > 1 && args[1] == "token":
		fmt.Println("the token is:\nsecret-of-a")
	default:
		err = os.WriteFile(filepath.Join(nodeStateDirectory, "identity"), fmt.Appendln(nil, args), 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func playAgent(args []string) error {
	if slices.Contains(args, "--broken") {
		return fmt.Errorf("this agent is broken on purpose")
	}
	if err := os.MkdirAll(filepath.Dir(agentSocket), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(agentSocket); err != nil {
		return err
	}
	listener, err := net.Listen("unix", agentSocket)
	if err != nil {
		return err
	}
	fmt.Println("agent started", args)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		_ = conn.Close()
	}
}
