package stream

import (
	"errors"
	"fmt"
)

// Errors that callers tell apart.
var (
	// ErrProtocol: what the peer sent is not what this protocol allows.
	ErrProtocol = errors.New("the peer does not keep to the protocol of data streams")
	// ErrTruncated: the connection ended before the final marker.
	ErrTruncated = errors.New("the connection ended in the middle of the stream")
	// ErrStalled: the peer stopped in the middle of a frame.
	ErrStalled = errors.New("the peer stopped sending in the middle of a frame")
	// ErrDamaged: content arrived that is not what was sent.
	ErrDamaged = errors.New("content was damaged on its way")
	// ErrClosed: this side closed the session.
	ErrClosed = errors.New("the stream was closed")
)

// VersionError says that the peer speaks another version of the protocol.
type VersionError struct {
	Ours, Theirs uint16
}

// Error implements error.
func (e *VersionError) Error() string {
	return fmt.Sprintf("the peer speaks version %d of the data stream protocol, this node version %d: "+
		"install the same "+
		"version of godwit on both", e.Theirs, e.Ours)
}

// PeerError is what the peer gave as its reason for ending or refusing the stream.
type PeerError struct {
	Reason string
}

// Error implements error.
func (e *PeerError) Error() string { return "the peer ended the stream: " + e.Reason }

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}
