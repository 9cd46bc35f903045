package memory

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// EncodeMap writes the maps of all tasks: for each a header (task u32, number of areas u64;
// little-endian), then for each of its areas how many pages are between the end of the one before,
// at first 0, and its start, and how many pages it has (both as in package encoding/binary,
// variable length). It is in the freeze that it is sent: an area takes 2 or 3 bytes.
func EncodeMap(w io.Writer, maps []TaskMap) error {
	b := bufio.NewWriterSize(w, 64<<10)
	size := uint64(PageSize())
	var buffer []byte
	for _, m := range maps {
		buffer = binary.LittleEndian.AppendUint32(buffer[:0], uint32(m.Task))
		buffer = binary.LittleEndian.AppendUint64(buffer, uint64(len(m.Areas)))
		end := uint64(0)
		for _, a := range m.Areas {
			if a.Start < end || a.Start%size != 0 {
				return fmt.Errorf("%w area: %d pages at %#x after %#x", ErrMalformed, a.Pages, a.Start, end)
			}
			buffer = binary.AppendUvarint(buffer, (a.Start-end)/size)
			buffer = binary.AppendUvarint(buffer, a.Pages)
			end = a.Start + a.Pages*size
			if len(buffer) < 32<<10 {
				continue
			}
			if _, err := b.Write(buffer); err != nil {
				return err
			}
			buffer = buffer[:0]
		}
		if _, err := b.Write(buffer); err != nil {
			return err
		}
	}
	return b.Flush()
}

// DecodeMap reads maps until r ends. Tasks are different, areas ascend and do not overlap. What it
// allocates is bound by what it has read, and by MaxTasks and MaxAreas.
func DecodeMap(r io.Reader) ([]TaskMap, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	var maps []TaskMap
	seen := map[Task]bool{}
	left := uint64(MaxAreas)
	for {
		var header [mapHeaderSize]byte
		if _, err := io.ReadFull(b, header[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return maps, nil
			}
			return nil, fmt.Errorf("read a map: %w", err)
		}
		m := TaskMap{Task: Task(binary.LittleEndian.Uint32(header[0:]))}
		count := binary.LittleEndian.Uint64(header[4:])
		if m.Task == 0 || m.Task > lastTask || seen[m.Task] || len(maps) == MaxTasks || count > left {
			return nil, fmt.Errorf("%w map: task %d with %d areas, after %d tasks", ErrMalformed, m.Task,
				count, len(maps))
		}
		seen[m.Task] = true
		left -= count
		var err error
		if m.Areas, err = decodeAreas(b, count); err != nil {
			return nil, fmt.Errorf("map of task %d: %w", m.Task, err)
		}
		maps = append(maps, m)
	}
}

func decodeAreas(r *bufio.Reader, count uint64) ([]Area, error) {
	var areas []Area // grows with what really comes
	size, end := uint64(PageSize()), uint64(0)
	for range count {
		gap, err := binary.ReadUvarint(r)
		var pages uint64
		if err == nil {
			pages, err = binary.ReadUvarint(r)
		}
		if err != nil {
			return nil, fmt.Errorf("read an area: %w", noEOF(err))
		}
		most := (maxAddress - end) / size
		if gap >= most || pages == 0 || pages > most-gap {
			return nil, fmt.Errorf("%w area: %d pages, %d pages after %#x", ErrMalformed, pages, gap, end)
		}
		start := end + gap*size
		end = start + pages*size
		areas = append(areas, Area{Start: start, Pages: pages})
	}
	return areas, nil
}

// noEOF is for reads within something that has begun, where the end is unexpected.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
