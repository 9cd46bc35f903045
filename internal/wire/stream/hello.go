package stream

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Version of the protocol. It changes whenever two versions would misunderstand each other.
const Version = 1

// maxHello bounds a peer's greeting.
const maxHello = 4096

// helloTimeout ends a peer that connects and sends nothing.
const helloTimeout = 15 * time.Second

// magic begins the preamble. Its line break and zero byte quickly identify a peer that uses another
// protocol.
func magic() []byte { return []byte("GODWIT\n\x00") }

// Hello says what a connection is for.
type Hello struct {
	Migration string `json:"migration"`
	Purpose   string `json:"purpose"`
	// Pair is the same for connections that belong together; empty: the connection is used alone.
	Pair string `json:"pair,omitempty"`
}

// answer is the accepting side's answer.
type answer struct {
	Refused string `json:"refused,omitempty"`
}

// Open begins a session on a connection that this side made. The peer may refuse: then the error is a
// PeerError, which an eager session returns when it is used. The session owns the connection; on an error
// Open closes the connection.
func Open(ctx context.Context, conn net.Conn, hello Hello, o Options) (*Session, error) {
	finish := deadline(ctx, conn)
	err := sendPreamble(conn, hello)
	if err == nil && !o.Eager {
		err = receiveAnswer(conn)
	}
	if err = finish(err); err != nil {
		conn.Close()
		return nil, openError(conn, err)
	}
	return newSession(conn, o, o.Eager)
}

func openError(conn net.Conn, err error) error {
	var refused *PeerError
	if errors.As(err, &refused) {
		return refused
	}
	return fmt.Errorf("open a data stream to %s: %w", conn.RemoteAddr(), err)
}

// receiveAnswer waits for the peer's answer to a greeting.
func receiveAnswer(conn net.Conn) error {
	var reply answer
	if err := receivePreamble(conn, &reply); err != nil {
		return err
	}
	if reply.Refused != "" {
		return &PeerError{Reason: reply.Refused}
	}
	return nil
}

// Answer begins a session on a connection that the peer made, if check accepts its purpose. The error of
// check is sent to the peer and returned. The session owns the connection; on an error Answer closes the
// connection.
func Answer(ctx context.Context, conn net.Conn, check func(Hello) error, o Options) (*Session, Hello, error) {
	return AnswerWith(ctx, conn, func(hello Hello) (Options, error) { return o, check(hello) })
}

// AnswerWith is Answer with options that depend on what the connection is for.
func AnswerWith(ctx context.Context, conn net.Conn, check func(Hello) (Options, error)) (*Session, Hello,
	error) {
	var o Options
	var hello Hello
	finish := deadline(ctx, conn)
	err := receivePreamble(conn, &hello)
	var version *VersionError
	if errors.As(err, &version) {
		err = errors.Join(err, sendPreamble(conn, answer{})) // so that the peer can report the same
	}
	if err == nil {
		var reply answer
		var refusal error
		o, refusal = check(hello)
		if refusal != nil {
			reply.Refused = clip(refusal.Error())
		}
		if err = sendPreamble(conn, reply); err == nil {
			err = refusal
		}
	}
	if err = finish(err); err != nil {
		skip(conn)
		conn.Close()
		return nil, hello, fmt.Errorf("answer a data stream from %s: %w", conn.RemoteAddr(), err)
	}
	session, err := newSession(conn, o, false)
	return session, hello, err
}

// skip reads data that an eager peer has sent behind its greeting. Closing a connection with unread data
// resets it, and the peer might not see the refusal.
func skip(conn net.Conn) {
	const most = 1 << 20
	if conn.SetReadDeadline(time.Now().Add(abortTimeout)) == nil {
		_, _ = io.CopyN(io.Discard, conn, most) // the peer ends it after reading the answer
	}
}

// maxReason bounds a reason for a peer: JSON needs up to six bytes for one.
const maxReason = maxHello/6 - 32

// clip keeps a text short enough for a peer.
func clip(text string) string {
	if len(text) > maxReason {
		return text[:maxReason]
	}
	return text
}

// deadline bounds operations on conn until the returned function is called, which returns the resulting
// error.
func deadline(ctx context.Context, conn net.Conn) func(error) error {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) }) // it only hastens
	return func(err error) error {
		defer cancel()
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return err
	}
}

// sendPreamble writes magic, version, length and a value as JSON.
func sendPreamble(w io.Writer, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(body) > maxHello {
		return fmt.Errorf("a greeting of %d bytes; the limit is %d", len(body), maxHello)
	}
	out := binary.BigEndian.AppendUint16(magic(), Version)
	out = binary.BigEndian.AppendUint16(out, uint16(len(body)))
	_, err = w.Write(append(out, body...))
	return err
}

// receivePreamble checks the magic before the version, and the version before everything that depends on
// it.
func receivePreamble(r io.Reader, value any) error {
	head := make([]byte, len(magic())+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return fmt.Errorf("%w: %w", ErrTruncated, err)
	}
	if !bytes.HasPrefix(head, magic()) {
		return protocolError("it begins with %q", head)
	}
	version, length := binary.BigEndian.Uint16(head[8:]), binary.BigEndian.Uint16(head[10:])
	if version != Version {
		// The length has the same meaning in all versions. Unread data would reset the connection, and the
		// peer would not see our answer.
		_, _ = io.CopyN(io.Discard, r, int64(length))
		return &VersionError{Ours: Version, Theirs: version}
	}
	if length > maxHello {
		return protocolError("a greeting of %d bytes; the limit is %d", length, maxHello)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return fmt.Errorf("%w: %w", ErrTruncated, err)
	}
	if err := json.Unmarshal(body, value); err != nil {
		return protocolError("a greeting that cannot be decoded: %v", err)
	}
	return nil
}
