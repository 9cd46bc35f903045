package lab

// slabSize is the size of each allocation of the queue. A slab holds several of the largest packets.
const slabSize = 1 << 20

// fifo holds packets in order, with the times when they leave. Packets are copied into large slabs that are
// reused: a link at 1 Gbit/s makes no garbage.
type fifo struct {
	entries []entry // entries[head:] are held
	head    int
	spare   [][]byte
	filling []byte // the slab to which packets are added
	total   int
}

type entry struct {
	at   int64
	data []byte
	slab []byte // set for the last packet of this slab, which is free after it
}

func (q *fifo) count() int { return len(q.entries) - q.head }
func (q *fifo) bytes() int { return q.total }

func (q *fifo) push(at int64, data []byte) {
	if len(q.filling)+len(data) > cap(q.filling) {
		q.nextSlab(len(data))
	}
	offset := len(q.filling)
	q.filling = append(q.filling, data...)
	q.entries = append(q.entries, entry{at: at, data: q.filling[offset:len(q.filling):len(q.filling)]})
	q.total += len(data)
}

// nextSlab closes the current slab and begins another.
func (q *fifo) nextSlab(need int) {
	if q.count() > 0 && cap(q.filling) > 0 {
		q.entries[len(q.entries)-1].slab = q.filling
	} else if cap(q.filling) >= need {
		q.filling = q.filling[:0] // nothing is held in it
		return
	}
	if last := len(q.spare) - 1; last >= 0 && cap(q.spare[last]) >= need {
		q.filling, q.spare = q.spare[last][:0], q.spare[:last]
		return
	}
	q.filling = make([]byte, 0, max(slabSize, need))
}

func (q *fifo) next() (at int64, ok bool) {
	if q.count() == 0 {
		return 0, false
	}
	return q.entries[q.head].at, true
}

// pop returns the first packet. Its memory is reused after the next push.
func (q *fifo) pop() []byte {
	e := q.entries[q.head]
	q.entries[q.head] = entry{}
	q.head++
	q.total -= len(e.data)
	if e.slab != nil && len(q.spare) < 4 {
		q.spare = append(q.spare, e.slab)
	}
	if q.head == len(q.entries) {
		q.entries, q.head = q.entries[:0], 0
	} else if q.head > 1024 && q.head > len(q.entries)/2 {
		n := copy(q.entries, q.entries[q.head:])
		clear(q.entries[n:])
		q.entries, q.head = q.entries[:n], 0
	}
	return e.data
}

func (q *fifo) clear() { *q = fifo{spare: q.spare} }
