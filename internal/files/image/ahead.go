package image

import (
	"io"

	"github.com/godwit/godwit/internal/guard"
)

// aheadPieces bounds what is read ahead, in pieces of unpackBuffer.
const aheadPieces = 8

// ahead reads in a separate goroutine, so that producing the bytes (receiving, decompressing, digesting)
// and using them (files) can each have a processor.
type ahead struct {
	full  chan piece
	empty chan []byte
	stop  chan struct{}
	ended chan struct{}

	now  piece
	rest []byte // of now
}

type piece struct {
	bytes []byte
	err   error // after them
}

func readAhead(in io.Reader) *ahead {
	a := &ahead{
		full: make(chan piece, aheadPieces), empty: make(chan []byte, aheadPieces), stop: make(chan struct{}),
		ended: make(chan struct{}),
	}
	for range aheadPieces {
		a.empty <- nil
	}
	go a.fill(in)
	return a
}

func (a *ahead) fill(in io.Reader) {
	defer close(a.ended)
	for {
		var buffer []byte
		select {
		case buffer = <-a.empty:
		case <-a.stop:
			return
		}
		if buffer == nil {
			buffer = make([]byte, unpackBuffer)
		}
		var n int
		err := guard.Do(func() (err error) {
			n, err = fillBuffer(in, buffer)
			return err
		})
		select {
		case a.full <- piece{buffer[:n], err}:
		case <-a.stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// fillBuffer reads until a buffer is full, or there is an error, which is returned as it is.
func fillBuffer(in io.Reader, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil {
		var more int
		more, err = in.Read(buffer[n:])
		n += more
	}
	return n, err
}

func (a *ahead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.now.err != nil {
			return 0, a.now.err
		}
		if a.now.bytes != nil {
			a.empty <- a.now.bytes[:cap(a.now.bytes)]
		}
		a.now = <-a.full
		a.rest = a.now.bytes
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Close ends the reading, and returns when it has ended.
func (a *ahead) Close() {
	close(a.stop)
	<-a.ended
}
