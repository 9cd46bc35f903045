package pipeline

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/godwit/godwit/internal/memory"
)

// DefaultCacheBytes is the default size of the cache for deltas.
const DefaultCacheBytes = 64 << 20

// minFrame is the size at which a frame leaves when all lanes are idle.
const minFrame = 64 << 10

// SenderConfig configures a Sender.
type SenderConfig struct {
	Key Key
	// CacheBytes bounds the cache for deltas; 0: DefaultCacheBytes; negative: no cache.
	CacheBytes int64
}

// Sender makes frames of pages. Put, Barrier and Missing are for one goroutine at a time, and Known for
// when there is none; everything else may be called by any goroutine.
type Sender struct {
	hash  *Hasher
	out   *outbox
	table *table
	cache *cache
	size  int

	frame  *frame // being made; nil: none
	number uint64 // of the next frame
	open   openRecord
	delta  []byte // room for one
	round  uint64
	soon   bool // pages put now are expected to be put again

	mu    sync.Mutex
	stats Stats // of everything put
	now   Stats // of the present Put
}

// openRecord is the last record of the frame, which may be extended.
type openRecord struct {
	record
	end    uint64   // where it would continue
	at     int      // of its header in the frame
	source location // where a copy would continue
	check  check
}

// NewSender returns a sender without lanes.
func NewSender(config SenderConfig) (*Sender, error) {
	hash, err := NewHasher(config.Key)
	if err != nil {
		return nil, err
	}
	if config.CacheBytes == 0 {
		config.CacheBytes = DefaultCacheBytes
	}
	return &Sender{
		hash: hash, out: newOutbox(), table: newTable(hash.zero), cache: newCache(max(0, config.CacheBytes)),
		size: memory.PageSize(),
	}, nil
}

// Again ends the sender, and returns one that continues where it was, with new lanes, to a new receiver
// with the same key and store. Everything put so far must be in place there. The new sender does not refer
// to what the receiver had before the migration.
func (s *Sender) Again() *Sender {
	s.Close()
	s.table.forget(func(p place) bool { return p.base }, s.cache.drop)
	return &Sender{hash: s.hash, out: newOutbox(), table: s.table, cache: s.cache, size: s.size}
}

// AddLane starts using another connection.
func (s *Sender) AddLane(lane Lane) error { return s.out.add(lane) }

// Close ends the sender. The caller owns the lanes.
func (s *Sender) Close() { s.out.close() }

// Fail ends the sender with a reason, which becomes the error of everything that waits in it.
func (s *Sender) Fail(err error) { s.out.fail(err) }

// Done is closed when the sender has failed or was closed; Err then returns the reason.
func (s *Sender) Done() <-chan struct{} { return s.out.done }

// Err returns why the sender has ended; nil while it has not.
func (s *Sender) Err() error { return s.out.failure() }

// Stats returns what has happened to the pages that were put.
func (s *Sender) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Expect reports whether pages put from now on will be put again soon: see memory.Expecter. Then they are
// kept, to make deltas to.
func (s *Sender) Expect(again bool) { s.soon = again }

// Put takes a run of pages: see memory.Sink. After an error the sender is useless.
func (s *Sender) Put(run memory.Run, data []byte) error {
	if err := run.Check(); err != nil {
		return err
	}
	if !run.Zero && len(data) != int(run.Pages)*s.size {
		return fmt.Errorf("%d bytes for %d pages at %#x of process %d", len(data), run.Pages, run.Address,
			run.Task)
	}
	to := location{task: run.Task, address: run.Address}
	for i := range int(run.Pages) {
		var err error
		if run.Zero {
			err = s.zero(to)
		} else {
			err = s.page(to, data[i*s.size:(i+1)*s.size])
		}
		if err != nil {
			return err
		}
		to.address += uint64(s.size)
	}
	s.now.Pages += uint64(run.Pages)
	s.count()
	if s.frame != nil && len(s.frame.bytes) >= minFrame && s.out.idle() {
		s.submit()
	}
	return nil
}

func (s *Sender) count() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats = s.now
	if s.frame != nil {
		s.stats.FrameBytes += uint64(len(s.frame.bytes))
	}
}

func (s *Sender) zero(to location) error {
	id, err := s.table.at(to)
	if err != nil {
		return err
	}
	if s.table.digest(id) == s.hash.zero {
		s.now.UnchangedPages++
		return nil
	}
	if !s.goesOn(kindZero, to) || s.open.pages == memory.MaxZeroPages {
		if err := s.begin(kindZero, to, 0); err != nil {
			return err
		}
	}
	s.extend()
	s.table.set(id, s.hash.zero)
	s.cache.drop(id)
	s.now.ZeroPages++
	return nil
}

// page sends a page in the cheapest way.
func (s *Sender) page(to location, content []byte) error {
	id, err := s.table.at(to)
	if err != nil {
		return err
	}
	was, is := s.table.digest(id), s.hash.Page(content)
	if was == is {
		s.now.UnchangedPages++
		s.cache.touch(id)
		return nil
	}
	again := was != Digest{} && was != s.hash.zero
	from, found := s.same(to, is)
	switch {
	case found:
		err = s.copyFrom(to, from, is)
	case again && s.findDelta(id, content):
		err = s.putDelta(to, is)
	default:
		err = s.content(to, content)
	}
	if err != nil {
		return err
	}
	s.table.set(id, is)
	s.cache.keep(id, content, again, s.soon)
	return nil
}

// same looks for a page with this content, first where the open record would continue.
func (s *Sender) same(to location, is Digest) (location, bool) {
	if kind := s.open.kind; (kind == kindCopy || kind == kindBase) && s.goesOn(kind, to) &&
		s.table.has(s.open.source, is) {
		return s.open.source, true
	}
	id, found := s.table.find(is)
	if !found {
		return location{}, false
	}
	return s.table.where(id), true
}

func (s *Sender) copyFrom(to, from location, is Digest) error {
	k := kindCopy
	if from.base {
		k = kindBase
		s.now.BasePages++
	}
	s.now.ReferencePages++
	if !s.goesOn(k, to) || s.open.source != from || s.open.pages == maxRun || s.overlaps(to, from) {
		if err := s.begin(k, to, sourceBytes+checkBytes); err != nil {
			return err
		}
		s.open.source = from
		s.frame.bytes = binary.LittleEndian.AppendUint32(s.frame.bytes, uint32(from.task))
		s.frame.bytes = binary.LittleEndian.AppendUint64(s.frame.bytes, from.address)
		s.frame.bytes = binary.LittleEndian.AppendUint64(s.frame.bytes, 0) // close writes it
	}
	s.open.check = s.open.check.add(is)
	s.open.source.address += uint64(s.size)
	s.extend()
	return nil
}

// overlaps reports whether the open record, with one more page, would copy pages that it makes itself.
func (s *Sender) overlaps(to, from location) bool {
	size := uint64(s.size)
	first := from.address - uint64(s.open.pages)*size
	return !from.base && from.task == to.task && first < to.address+size && s.open.address < from.address+size
}

// findDelta makes the delta of a page if its base is known, and if the delta is much smaller.
func (s *Sender) findDelta(id pageID, content []byte) bool {
	old := s.cache.get(id)
	if old == nil {
		return false
	}
	delta, small := AppendDelta(s.delta[:0], old, content, s.size/2)
	s.delta = delta
	return small
}

func (s *Sender) putDelta(to location, is Digest) error {
	if !s.goesOn(kindDelta, to) || s.open.pages == maxRun || !s.room(lengthBytes+len(s.delta)) {
		if err := s.begin(kindDelta, to, checkBytes+lengthBytes+len(s.delta)); err != nil {
			return err
		}
		s.frame.bytes = binary.LittleEndian.AppendUint64(s.frame.bytes, 0) // close writes it
	}
	s.frame.bytes = binary.LittleEndian.AppendUint16(s.frame.bytes, uint16(len(s.delta)))
	s.frame.bytes = append(s.frame.bytes, s.delta...)
	s.open.check = s.open.check.add(is)
	s.extend()
	s.now.DeltaPages++
	return nil
}

func (s *Sender) content(to location, content []byte) error {
	if !s.goesOn(kindContent, to) || s.open.pages == maxRun || !s.room(len(content)) {
		if err := s.begin(kindContent, to, len(content)); err != nil {
			return err
		}
	}
	s.frame.bytes = append(s.frame.bytes, content...)
	s.extend()
	s.now.ContentPages++
	return nil
}

// goesOn reports whether a page can be the next of the open record.
func (s *Sender) goesOn(k kind, to location) bool {
	return s.open.kind == k && s.open.task == to.task && s.open.end == to.address
}

// extend adds a page to the open record.
func (s *Sender) extend() {
	s.open.pages++
	s.open.end += uint64(s.size)
}

func (s *Sender) room(bytes int) bool {
	return s.frame != nil && len(s.frame.bytes)+bytes <= FrameBytes
}

// begin opens a record after the last one, in a new frame if the record and the first bytes after its
// header do not fit.
func (s *Sender) begin(k kind, to location, bytes int) error {
	s.closeRecord()
	if s.frame != nil && !s.room(headerBytes+bytes) {
		s.submit()
	}
	if s.frame == nil {
		f, err := s.out.take()
		if err != nil {
			return fmt.Errorf("send pages: %w", err)
		}
		s.frame = f
		f.bytes = binary.LittleEndian.AppendUint64(f.bytes, s.number)
		s.number++
	}
	s.open = openRecord{
		record: record{kind: k, task: to.task, address: to.address}, end: to.address, at: len(s.frame.bytes),
	}
	s.frame.bytes = s.open.append(s.frame.bytes)
	return nil
}

// closeRecord writes the fields that are only known now.
func (s *Sender) closeRecord() {
	if s.open.kind == kindNone {
		return
	}
	header := s.frame.bytes[s.open.at:]
	s.open.append(header[:0])
	switch s.open.kind {
	case kindCopy, kindBase:
		binary.LittleEndian.PutUint64(header[headerBytes+sourceBytes:], uint64(s.open.check))
	case kindDelta:
		binary.LittleEndian.PutUint64(header[headerBytes:], uint64(s.open.check))
	}
	s.open = openRecord{}
}

// submit passes the frame on.
func (s *Sender) submit() {
	s.closeRecord()
	s.now.FrameBytes += uint64(len(s.frame.bytes))
	s.out.give(s.frame)
	s.frame = nil
}

// Forget says that a task has ended: see memory.Forgetter.
func (s *Sender) Forget(task memory.Task) error {
	if err := s.begin(kindForget, location{task: task}, 0); err != nil {
		return err
	}
	s.closeRecord()
	s.table.forget(func(p place) bool { return p.task == task && !p.base }, s.cache.drop)
	return nil
}

// Barrier ends a round. It returns when the lanes have taken everything put, with the number of the
// barrier, which the receiver reports when it has placed everything before it.
func (s *Sender) Barrier(ctx context.Context) (uint64, error) {
	s.round++
	if err := s.begin(kindBarrier, location{address: s.round}, 0); err != nil {
		return 0, err
	}
	s.submit()
	s.count()
	s.cache.next()
	return s.round, s.out.drain(ctx)
}

// Claim says that the receiver had pages with these digests before the migration, from this address on.
func (s *Sender) Claim(task memory.Task, address uint64, digests []Digest) error {
	at := location{task: task, base: true, address: address}
	for _, d := range digests {
		id, err := s.table.at(at)
		if err != nil {
			return err
		}
		s.table.set(id, d)
		at.address += uint64(s.size)
	}
	return nil
}

// Missing says that the receiver lacks pages that were put. They have to be put again. The sender no longer
// refers to what the receiver had before the migration, because that is where they would have come from.
func (s *Sender) Missing(maps []memory.TaskMap) error {
	s.table.forget(func(p place) bool { return p.base }, s.cache.drop)
	for _, m := range maps {
		for _, area := range m.Areas {
			for i := range area.Pages {
				at := location{task: m.Task, address: area.Start + i*uint64(s.size)}
				id, err := s.table.at(at)
				if err != nil {
					return err
				}
				s.table.set(id, Digest{})
				s.cache.drop(id)
			}
		}
	}
	return nil
}
