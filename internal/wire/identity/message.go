package identity

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// ALPN names of the two exchanges with the CA's node.
const (
	// JoinProtocol has no client certificate: the token is what admits.
	JoinProtocol = "godwit-join/1"
	// RenewProtocol is for nodes that have a valid certificate.
	RenewProtocol = "godwit-renew/1"
)

const (
	maxMessageBytes = 64 << 10
	// maxReplyBytes is for what comes from the authority, which has proven who it is.
	maxReplyBytes   = 1 << 20
	messageHeader   = 4
	exchangeTimeout = 15 * time.Second
	// maxClockSkew is more than certificates need, but nodes that disagree by more make reports and logs
	// useless.
	maxClockSkew = 5 * time.Minute
)

var errMessageTooLarge = errors.New("message is too large")

// joinRequest is a node's request to join. It is not trusted before its token is checked.
type joinRequest struct {
	Secret  []byte    `json:"secret"`
	Name    string    `json:"name"`
	Address string    `json:"address"`
	Request []byte    `json:"request"` // PKCS #10
	Time    time.Time `json:"time"`
}

// renewRequest requests a new certificate for the name and number in the certificate of the connection.
type renewRequest struct {
	Request []byte    `json:"request"`
	Time    time.Time `json:"time,omitzero"` // zero from the previous release
	// Revoked are the removals that the node knows, so that none is lost with an authority that is rolled
	// over.
	Revoked []Revocation `json:"revoked,omitempty"`
}

// certificateReply answers both requests.
type certificateReply struct {
	// Code and Error say why there is no certificate.
	Code  string `json:"code,omitempty"`
	Error string `json:"error,omitempty"`

	Certificate []byte       `json:"certificate,omitempty"`
	Number      int          `json:"number,omitempty"`
	Pool        netip.Prefix `json:"pool"`
	Nodes       []Node       `json:"nodes,omitempty"`
	Revoked     []Revocation `json:"revoked,omitempty"`
	// Base is the authority that certified the one of Certificate, while it is still trusted.
	Base       []byte      `json:"base,omitempty"`
	Succession *Succession `json:"succession,omitempty"`
}

// replyCodes lets a refusal keep its kind across the wire.
func replyCodes() map[string]error {
	return map[string]error{
		"token-unknown": ErrTokenUnknown,
		"token-used":    ErrTokenUsed,
		"token-expired": ErrTokenExpired,
		"name-taken":    ErrNameTaken,
		"cluster-full":  ErrClusterFull,
		"not-authority": ErrNotAuthority,
		"clock-skew":    ErrClockSkew,
		"revoked":       ErrRevoked,
	}
}

// ErrClockSkew means that two nodes' clocks differ too much for certificates to work.
var ErrClockSkew = errors.New("clocks differ too much")

// refusal is an error that another node gave as its reason.
type refusal struct {
	text string
	kind error
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.kind }

func refuse(err error) certificateReply {
	reply := certificateReply{Error: err.Error()}
	for code, kind := range replyCodes() {
		if errors.Is(err, kind) {
			reply.Code = code
		}
	}
	return reply
}

func (r *certificateReply) refused() error {
	if r.Error == "" {
		return nil
	}
	return &refusal{text: r.Error, kind: replyCodes()[r.Code]}
}

// writeMessage sends one value: four bytes of length, then JSON.
func writeMessage(w io.Writer, value any) error { return writeUpTo(w, value, maxMessageBytes) }

func writeUpTo(w io.Writer, value any, limit int) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if len(body) > limit {
		return fmt.Errorf("%w: %d bytes, the limit is %d", errMessageTooLarge, len(body), limit)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// readMessage receives one value and never holds more than the limit, whatever length is announced.
func readMessage(r io.Reader, value any) error { return readUpTo(r, value, maxMessageBytes) }

func readUpTo(r io.Reader, value any, limit uint32) error {
	var header [messageHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(header[:])
	if length > limit {
		return fmt.Errorf("%w: it announces %d bytes, the limit is %d", errMessageTooLarge, length, limit)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, value); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}
