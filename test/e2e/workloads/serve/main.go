// Command serve answers each connection once and closes it, and remembers its clients.
//
// A request is two numbers of 64 bits, big-endian: the client's number, and the size of the answer in bytes.
// The answer is the first number and that many bytes of its lowest byte. The client number 0 gets the number
// of answered clients, how many of them more than once, and how many connections ended before their request.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

func main() {
	config := net.ListenConfig{}
	config.SetMultipathTCP(false) // CRIU cannot dump it
	listener, err := config.Listen(context.Background(), "tcp4", ":7000")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	s := &server{times: map[uint64]int{}}
	for {
		conn, err := listener.Accept()
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go s.serve(conn)
	}
}

type server struct {
	mu       sync.Mutex
	times    map[uint64]int
	doubled  uint64
	unspoken uint64
}

// serve answers one connection.
func (s *server) serve(conn net.Conn) {
	defer conn.Close()
	var request [16]byte
	if _, err := io.ReadFull(conn, request[:]); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unspoken++
		return
	}
	who, size := binary.BigEndian.Uint64(request[:]), binary.BigEndian.Uint64(request[8:])
	if who == 0 {
		_, _ = conn.Write(s.count())
		return
	}
	s.mu.Lock()
	if s.times[who]++; s.times[who] == 2 {
		s.doubled++
	}
	s.mu.Unlock()
	// A client that has gone misses the answer, and reports that itself.
	_, _ = conn.Write(append(binary.BigEndian.AppendUint64(nil, who),
		bytes.Repeat([]byte{byte(who)}, int(min(size, 1<<20)))...))
}

// count returns the answer to client number 0.
func (s *server) count() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var answer []byte
	for _, number := range []uint64{uint64(len(s.times)), s.doubled, s.unspoken} {
		answer = binary.BigEndian.AppendUint64(answer, number)
	}
	return answer
}
