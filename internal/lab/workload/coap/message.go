package coap

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Types and codes of messages (RFC 7252, section 3).
const (
	confirmable     = 0
	acknowledgement = 2
	reset           = 3

	codeEmpty = 0
	codeGET   = 1
	codePOST  = 2

	optionPath    = 11
	payloadMarker = 0xff
)

// message is a CoAP message with no option but a path.
type message struct {
	kind    byte
	code    byte
	id      uint16
	token   uint32
	path    string
	payload []byte
}

// tokenBytes is the length of this client's tokens.
const tokenBytes = 4

// encode encodes a message whose path is one segment of at most 12 bytes.
func (m message) encode() []byte {
	b := []byte{1<<6 | m.kind<<4 | tokenBytes, m.code}
	b = binary.BigEndian.AppendUint16(b, m.id)
	b = binary.BigEndian.AppendUint32(b, m.token)
	if m.path != "" {
		b = append(b, optionPath<<4|byte(len(m.path)))
		b = append(b, m.path...)
	}
	if len(m.payload) > 0 {
		b = append(append(b, payloadMarker), m.payload...)
	}
	return b
}

// acknowledge returns the empty message that acknowledges a confirmable one.
func acknowledge(id uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{1<<6 | acknowledgement<<4, codeEmpty}, id)
}

// decode decodes a message. It skips options.
func decode(b []byte) (message, error) {
	if len(b) < 4 || b[0]>>6 != 1 {
		return message{}, errors.New("no CoAP message")
	}
	m := message{kind: b[0] >> 4 & 3, code: b[1], id: binary.BigEndian.Uint16(b[2:])}
	length := int(b[0] & 15)
	b = b[4:]
	if length > 8 || len(b) < length {
		return message{}, fmt.Errorf("a token of %d bytes in %d", length, len(b))
	}
	if length == tokenBytes {
		m.token = binary.BigEndian.Uint32(b)
	}
	rest, err := skipOptions(b[length:])
	m.payload = rest
	return m, err
}

// skipOptions returns the payload.
func skipOptions(b []byte) ([]byte, error) {
	for len(b) > 0 {
		if b[0] == payloadMarker {
			return b[1:], nil
		}
		delta, length := int(b[0]>>4), int(b[0]&15)
		b = b[1:]
		for _, field := range []*int{&delta, &length} {
			more := map[int]int{13: 1, 14: 2}[*field]
			if *field == 15 || len(b) < more {
				return nil, errors.New("a damaged option")
			}
			switch more {
			case 1:
				*field = int(b[0]) + 13
			case 2:
				*field = int(binary.BigEndian.Uint16(b)) + 269
			}
			b = b[more:]
		}
		if len(b) < length {
			return nil, errors.New("an option that is too long")
		}
		b = b[length:]
	}
	return nil, nil
}
