package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/memory"
)

// Claims hashes the listed pages of a base, and passes their digests on: for Sender.Claim at the other
// node.
func Claims(base PageReader, hash *Hasher, listed []memory.TaskMap,
	claim func(memory.Task, uint64, []Digest) error) error {
	page := make([]byte, memory.PageSize())
	digests := make([]Digest, 0, maxRun)
	for _, m := range listed {
		for _, area := range m.Areas {
			for done := uint64(0); done < area.Pages; done += uint64(len(digests)) {
				digests = digests[:0]
				at := area.Start + done*uint64(len(page))
				for i := range min(area.Pages-done, maxRun) {
					there, err := base.ReadPage(m.Task, at+i*uint64(len(page)), page)
					if err != nil {
						return fmt.Errorf("hash the pages that are here: %w", err)
					}
					if there {
						digests = append(digests, hash.Page(page))
					} else {
						digests = append(digests, Digest{})
					}
				}
				if err := claim(m.Task, at, digests); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

const digestBytes = 16

// EncodeClaim writes digests of consecutive pages: task (u32), address (u64), their number (u32), digests;
// little-endian.
func EncodeClaim(w io.Writer, task memory.Task, address uint64, digests []Digest) error {
	b := make([]byte, 0, headerBytes+len(digests)*digestBytes)
	b = binary.LittleEndian.AppendUint32(b, uint32(task))
	b = binary.LittleEndian.AppendUint64(b, address)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(digests)))
	for _, d := range digests {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, d[0]), d[1])
	}
	_, err := w.Write(b)
	return err
}

// DecodeClaims reads digests until r ends. limit bounds their number.
func DecodeClaims(r io.Reader, limit uint64, claim func(memory.Task, uint64, []Digest) error) error {
	var head [headerBytes]byte
	content := make([]byte, maxRun*digestBytes)
	digests := make([]Digest, maxRun)
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("read digests of pages: %w", err)
		}
		task, address := memory.Task(binary.LittleEndian.Uint32(head[:])),
			binary.LittleEndian.Uint64(head[4:])
		count := binary.LittleEndian.Uint32(head[12:])
		if err := (memory.Run{Task: task, Address: address, Pages: count}).Check(); err != nil {
			return malformed("digests of %v", err)
		}
		if uint64(count) > limit {
			return malformed("more digests than allowed")
		}
		limit -= uint64(count)
		if _, err := io.ReadFull(r, content[:count*digestBytes]); err != nil {
			return fmt.Errorf("read digests of pages: %w", err)
		}
		for i := range digests[:count] {
			at := content[i*digestBytes:]
			digests[i] = Digest{binary.LittleEndian.Uint64(at), binary.LittleEndian.Uint64(at[8:])}
		}
		if err := claim(task, address, digests[:count]); err != nil {
			return err
		}
	}
}
