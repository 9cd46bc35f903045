package hold

import (
	"encoding/binary"
	"sync"
	"time"
)

const (
	slabSize     = 256 << 10
	recordHeader = 12 // time of arrival since the queue was made 8, length 4
)

// queue holds packets in order, up to a limit of bytes. A full queue drops new packets, not old ones: then
// the unbroken beginning of each stream is delivered, and senders repeat the end. Packets lie one behind
// the other in slabs, so a queue of many small packets costs little more than their bytes.
type queue struct {
	limit int64
	made  time.Time // times of arrival count from here, so that setting the node's clock does not move them

	mu      sync.Mutex
	slabs   [][]byte
	read    int // offset in the first slab
	bytes   int64
	packets int64
	last    time.Time     // when the latest packet came
	came    chan struct{} // receives when a packet came; one pending is enough
}

// newQueue makes an empty queue.
func newQueue(limit int64) *queue {
	now := time.Now()
	return &queue{limit: limit, made: now, last: now, came: make(chan struct{}, 1)}
}

// push appends a packet; false means that the queue is full.
func (q *queue) push(packet []byte, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last = now
	if q.bytes+int64(len(packet)) > q.limit || len(packet) > slabSize-recordHeader {
		return false
	}
	if last := len(q.slabs) - 1; last < 0 || cap(q.slabs[last])-len(q.slabs[last]) < recordHeader+
		len(packet) {
		q.slabs = append(q.slabs, make([]byte, 0, slabSize))
	}
	slab := &q.slabs[len(q.slabs)-1]
	*slab = binary.NativeEndian.AppendUint64(*slab, uint64(now.Sub(q.made)))
	*slab = binary.NativeEndian.AppendUint32(*slab, uint32(len(packet)))
	*slab = append(*slab, packet...)
	q.bytes += int64(len(packet))
	q.packets++
	select {
	case q.came <- struct{}{}:
	default:
	}
	return true
}

// peek returns the oldest packet, valid until the next pop, and when it came.
func (q *queue) peek() (packet []byte, came time.Time, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.slabs) == 0 || q.read == len(q.slabs[0]) {
		return nil, time.Time{}, false
	}
	record := q.slabs[0][q.read:]
	length := int(binary.NativeEndian.Uint32(record[8:]))
	return record[recordHeader : recordHeader+length],
		q.made.Add(time.Duration(binary.NativeEndian.Uint64(record))), true
}

// pop removes the oldest packet.
func (q *queue) pop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	length := int(binary.NativeEndian.Uint32(q.slabs[0][q.read+8:]))
	q.read += recordHeader + length
	q.bytes -= int64(length)
	q.packets--
	if q.read < len(q.slabs[0]) {
		return
	}
	q.read = 0
	if len(q.slabs) == 1 {
		q.slabs[0] = q.slabs[0][:0]
		return
	}
	q.slabs = q.slabs[1:]
}

// size returns how much is queued, and when the latest packet came.
func (q *queue) size() (packets, bytes int64, last time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.packets, q.bytes, q.last
}
