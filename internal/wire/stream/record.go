package stream

import (
	"encoding/binary"
	"hash/crc32"
)

// Limits of a section's kind and name, and of the number of kinds in a stream.
const (
	MaxKind  = 32
	MaxName  = 4096
	maxKinds = 64
)

type recordType uint8

const (
	recordBegin recordType = 1 + iota // length of kind (1), of name (2), kind, name
	recordData                        // length (4), bytes
	recordEnd                         // length of the section (8), its CRC-32C (4)
	recordFinal                       // number of sections (8): nothing follows
)

const (
	beginBytes = 1 + 1 + 2
	dataBytes  = 1 + 4
	endBytes   = 1 + 8 + 4
	finalBytes = 1 + 8
)

// castagnoli has processor instructions on amd64 and arm64. TLS protects against others; this checksum
// protects against our own mistakes.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // the same table every time

type record struct {
	kind    recordType
	section string // begin: its kind
	name    string // begin
	data    []byte // data: part of the payload
	total   uint64 // end: bytes; final: sections
	sum     uint32 // end
}

func appendBegin(b []byte, kind, name string) []byte {
	b = append(b, byte(recordBegin), byte(len(kind)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(name)))
	return append(append(b, kind...), name...)
}

func appendEnd(b []byte, total uint64, sum uint32) []byte {
	b = binary.BigEndian.AppendUint64(append(b, byte(recordEnd)), total)
	return binary.BigEndian.AppendUint32(b, sum)
}

func appendFinal(b []byte, sections uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, byte(recordFinal)), sections)
}

// parseRecord takes the first record off a payload.
func parseRecord(b []byte) (record, []byte, error) {
	if len(b) == 0 {
		return record{}, nil, protocolError("a record is missing")
	}
	r := record{kind: recordType(b[0])}
	switch {
	case r.kind == recordBegin && len(b) >= beginBytes:
		return parseBegin(r, b)
	case r.kind == recordData && len(b) >= dataBytes:
		length := binary.BigEndian.Uint32(b[1:])
		if uint64(length) > uint64(len(b)-dataBytes) {
			return record{}, nil, protocolError("a record announces %d bytes in a frame that has %d left",
				length, len(b)-dataBytes)
		}
		r.data = b[dataBytes : dataBytes+int(length)]
		return r, b[dataBytes+int(length):], nil
	case r.kind == recordEnd && len(b) >= endBytes:
		r.total, r.sum = binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint32(b[9:])
		return r, b[endBytes:], nil
	case r.kind == recordFinal && len(b) >= finalBytes:
		r.total = binary.BigEndian.Uint64(b[1:])
		return r, b[finalBytes:], nil
	}
	return record{}, nil, protocolError("a record of type %d in the last %d bytes of a frame", b[0], len(b))
}

func parseBegin(r record, b []byte) (record, []byte, error) {
	kindBytes, nameBytes := int(b[1]), int(binary.BigEndian.Uint16(b[2:]))
	rest := b[beginBytes:]
	if kindBytes == 0 || kindBytes > MaxKind || nameBytes > MaxName || kindBytes+nameBytes > len(rest) {
		return record{}, nil, protocolError("a section announces a kind of %d and a name of %d bytes",
			kindBytes, nameBytes)
	}
	r.section = string(rest[:kindBytes])
	r.name = string(rest[kindBytes : kindBytes+nameBytes])
	return r, rest[kindBytes+nameBytes:], nil
}
