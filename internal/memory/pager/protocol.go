package pager

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/godwit/godwit/internal/memory"
)

// Remote pages come by a unix stream socket. Integers are little-endian.
//
// The pager writes first: a magic u64, the size of what follows u32, and the remote pages that have not
// come (memory.EncodeMap). After that it writes records of 16 bytes (kind u32, task u32, address u64):
//
//	want      a remote fault: a process waits for this page; each comes once
//	done      no page is missing any more, or nobody needs one
//	given up  an order was carried out; or not: then text follows, of address bytes
//	refused   the connection ends, because of what came; text follows, of address bytes
//
// The agent sends runs of pages as memory.Encoder writes them, and orders, which look like a run of
// task 0 whose number of pages is the order.
const (
	remoteMagic  = 0x3165_7461_4c_776447 // "GdwLate1"
	greetingSize = 12
	maxRemoteMap = 64 << 20
	recordSize   = 16
	maxText      = 1 << 10

	recordFault   = 1
	recordDone    = 2
	recordGivenUp = 3
	recordRefused = 4

	orderFail = 1 // accesses to what is missing fail from now on
	orderKill = 2 // the container is killed
)

// record is a message of the pager.
type record struct {
	kind    uint32
	task    memory.Task
	address uint64
	text    string
}

func (r record) encode(to []byte) []byte {
	text := r.text[:min(len(r.text), maxText)]
	if r.kind != recordFault {
		r.address = uint64(len(text))
	}
	to = binary.LittleEndian.AppendUint32(to, r.kind)
	to = binary.LittleEndian.AppendUint32(to, uint32(r.task))
	to = binary.LittleEndian.AppendUint64(to, r.address)
	return append(to, text...)
}

// readRecord reads a record; io.EOF only if r ends before it.
func readRecord(r io.Reader) (record, error) {
	var b [recordSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return record{}, err
	}
	one := record{
		kind: binary.LittleEndian.Uint32(b[0:]), task: memory.Task(binary.LittleEndian.Uint32(b[4:])),
		address: binary.LittleEndian.Uint64(b[8:]),
	}
	switch one.kind {
	case recordFault:
		return one, memory.Run{Task: one.task, Address: one.address, Pages: 1}.Check()
	case recordDone, recordGivenUp, recordRefused:
		if one.task != 0 || one.address > maxText || one.kind == recordDone && one.address > 0 {
			break
		}
		text := make([]byte, one.address)
		if _, err := io.ReadFull(r, text); err != nil {
			return record{}, errors.Join(io.ErrUnexpectedEOF, err)
		}
		one.text, one.address = string(text), 0
		return one, nil
	}
	return record{}, fmt.Errorf("%w record of remote pages: kind %d, task %d, %#x",
		memory.ErrMalformed, one.kind, one.task, one.address)
}

// encodeGreeting returns the beginning of a connection.
func encodeGreeting(missing []memory.TaskMap) ([]byte, error) {
	areas := 0
	for i := range missing { // further ones are for the next connection
		missing[i].Areas = missing[i].Areas[:min(len(missing[i].Areas), memory.MaxAreas-areas)]
		areas += len(missing[i].Areas)
	}
	var b bytes.Buffer
	b.Write(make([]byte, greetingSize))
	if err := memory.EncodeMap(&b, missing); err != nil {
		return nil, err
	}
	size := b.Len() - greetingSize
	if size > min(maxRemoteMap, math.MaxUint32) {
		return nil, fmt.Errorf("a map of missing pages of %d bytes", size)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), remoteMagic)
	binary.LittleEndian.PutUint32(b.Bytes()[8:], uint32(size))
	return b.Bytes(), nil
}

func readGreeting(r io.Reader) ([]memory.TaskMap, error) {
	var b [greetingSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(b[8:])
	if binary.LittleEndian.Uint64(b[:]) != remoteMagic || size > maxRemoteMap {
		return nil, fmt.Errorf("%w greeting of remote pages", memory.ErrMalformed)
	}
	limited := &io.LimitedReader{R: r, N: int64(size)}
	maps, err := memory.DecodeMap(limited)
	if err == nil && limited.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return maps, err
}
