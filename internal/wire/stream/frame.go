package stream

import "encoding/binary"

// MaxFrame is the maximum size of a frame's payload before compression.
const MaxFrame = 1 << 20

const (
	headerBytes = 12
	// maxControl bounds the frames that carry no records.
	maxControl = 4096
)

type frameType uint8

const (
	frameRecords frameType = 1 + iota
	framePing              // asks for a pong
	framePong
	frameProbe  // padding, to be measured
	frameReport // the receiver's measurement
	frameAbort  // the peer's reason for ending the stream
	frameTypesEnd
)

type header struct {
	kind  frameType
	codec Codec
	wire  int // bytes that follow
	raw   int // bytes after decompression
}

func (h header) put(b []byte) {
	b[0], b[1], b[2], b[3] = byte(h.kind), byte(h.codec), 0, 0
	binary.BigEndian.PutUint32(b[4:], uint32(h.wire))
	binary.BigEndian.PutUint32(b[8:], uint32(h.raw))
}

// parseHeader checks every field of a header, so that everything after it is bounded.
func parseHeader(b []byte) (header, error) {
	wire, raw := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	kind, codec := frameType(b[0]), Codec(b[1])
	switch {
	case kind == 0 || kind >= frameTypesEnd || b[2] != 0 || b[3] != 0:
		return header{}, protocolError("a frame begins with % x", b[:4])
	case codec >= codecsEnd:
		return header{}, protocolError("a frame has the unknown codec %d", codec)
	case raw > MaxFrame || wire > raw:
		return header{}, protocolError("a frame announces %d bytes, %d raw; the limit is %d", wire, raw,
			MaxFrame)
	case codec == None && wire != raw:
		return header{}, protocolError("a frame without compression announces %d bytes, %d raw", wire, raw)
	case kind == frameRecords && raw == 0:
		return header{}, protocolError("a frame of records is empty")
	case kind != frameRecords && (codec != None || raw > maxControl):
		return header{}, protocolError("a control frame announces %d bytes with codec %s", raw, codec)
	}
	return header{kind: kind, codec: codec, wire: int(wire), raw: int(raw)}, nil
}

// controlFrame makes a whole frame that carries no records.
func controlFrame(kind frameType, payload []byte) []byte {
	frame := make([]byte, headerBytes, headerBytes+len(payload))
	header{kind: kind, wire: len(payload), raw: len(payload)}.put(frame)
	return append(frame, payload...)
}
