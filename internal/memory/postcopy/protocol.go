package postcopy

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Kinds of sections.
const (
	kindFault    = "want"
	kindPages    = "pages"
	kindChanges  = "changes"
	kindMissing  = "missing"
	kindStatus   = "status"
	kindComplete = "complete"
)

// takesChanges is the name of the map of missing pages if the target accepts changes.
const takesChanges = "changes"

const (
	faultBytes = 12
	// maxFaults is the maximum number of remote faults in a section: their answer is 16 MiB.
	maxFaults = 4096
	// maxStatus bounds a report, and maxReason the text in it.
	maxStatus = 64 << 10
	maxReason = 4 << 10
)

// Errors that callers distinguish. Any other error means that a connection broke: the same Server or Client
// continues with new ones.
// Client goes on with new ones.
var (
	// ErrPeer: the peer broke the protocol, and was told so.
	ErrPeer = errors.New("the peer does not keep to the protocol of remote pages")
	// ErrSource: pages cannot be read at the source.
	ErrSource = errors.New("pages that stayed at the source cannot be read")
	// ErrTarget: the filler of the container's memory accepts no pages, or requests some that are not
	// remote.
	ErrTarget = errors.New("what fills the memory of the container cannot go on")
)

func peerError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrPeer, fmt.Errorf(format, args...))
}

// unknown says that a section was not expected here.
func unknown(s stream.Section) error { return peerError("a section of kind %q", s.Kind) }

// appendFault adds a remote fault to a section.
func appendFault(b []byte, w memory.RemoteFault) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(w.Task))
	return binary.LittleEndian.AppendUint64(b, w.Address)
}

// decodeFaults reads a section of remote faults. buffer has room for the largest, and a byte.
func decodeFaults(r io.Reader, buffer []byte, faults []memory.RemoteFault) ([]memory.RemoteFault, error) {
	n, err := io.ReadFull(r, buffer[:maxFaults*faultBytes+1])
	switch {
	case err == nil:
		return nil, peerError("more than %d requested pages at once", maxFaults)
	case errors.Is(err, io.EOF):
		return nil, peerError("no page is requested")
	case !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, stream.ErrTruncated):
		return nil, fmt.Errorf("read which pages are requested: %w", err)
	case n%faultBytes != 0:
		return nil, peerError("%d bytes that should be requested pages", n)
	}
	for b := buffer[:n]; len(b) > 0; b = b[faultBytes:] {
		faults = append(faults, memory.RemoteFault{
			Task: memory.Task(binary.LittleEndian.Uint32(b)), Address: binary.LittleEndian.Uint64(b[4:]),
		})
	}
	return faults, nil
}

// encodeStatus makes a report that decodeStatus accepts.
func encodeStatus(r memory.FillReport) ([]byte, error) {
	r.Error = r.Error[:min(len(r.Error), maxReason)]
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write a report: %w", err)
	}
	return data, nil
}

// decodeStatus reads a report. What it says is only shown.
func decodeStatus(r io.Reader) (memory.FillReport, error) {
	var report memory.FillReport
	data, err := io.ReadAll(io.LimitReader(r, maxStatus+1))
	if err != nil {
		return report, fmt.Errorf("read the target's report: %w", err)
	}
	if len(data) > maxStatus {
		return report, peerError("a report of more than %d bytes", maxStatus)
	}
	if err := json.Unmarshal(data, &report); err != nil {
		return memory.FillReport{}, peerError("a report that is none: %w", err)
	}
	report.Error = report.Error[:min(len(report.Error), maxReason)]
	switch report.State {
	case memory.FillNone, memory.Filling, memory.Filled, memory.FillEnded, memory.FillLost:
		return report, nil
	}
	return memory.FillReport{}, peerError("a report with state %.20q", report.State)
}

// witness remembers how a reader has ended.
type witness struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (w *witness) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

// blame reports whether it was the connection or what was read that is wrong.
func (w *witness) blame(what string, err error) error {
	if w.err == nil || errors.Is(w.err, io.EOF) { // nothing is wrong but what was read
		return peerError("%s: %w", what, err)
	}
	return fmt.Errorf("read %s: %w", what, err)
}

// decodeMissing reads the target's map of what is missing.
func decodeMissing(r io.Reader) ([]memory.TaskMap, error) {
	w := &witness{Reader: r}
	maps, err := memory.DecodeMap(w)
	if err != nil {
		return nil, w.blame("the map of what is missing", err)
	}
	return maps, nil
}
