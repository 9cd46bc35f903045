package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	images "github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	sk_unix "github.com/checkpoint-restore/go-criu/v7/crit/images/sk-unix"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/timerfd"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// filesImage describes the open files: two magic numbers, and then messages, each preceded by its size
// (criu/include/image.h, images/fdinfo.proto).
const (
	filesImage       = "files.img"
	imageHeaderBytes = 8
)

var errFilesImage = errors.New("its messages do not have the form that CRIU gives them")

// mendFiles corrects descriptions of open files that CRIU would restore wrongly.
func mendFiles(imagesDir string) error {
	path := filepath.Join(imagesDir, filesImage)
	image, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the description of open files: %w", err)
	}
	mended, changed, err := mendEntries(image)
	if err != nil {
		return fmt.Errorf("read the description of open files %s: %w", path, err)
	}
	if !changed {
		return nil
	}
	if err := os.WriteFile(path, mended, 0o600); err != nil {
		return fmt.Errorf("correct the description of open files: %w", err)
	}
	return nil
}

// mendEntries processes the messages. Messages that need no correction stay the same, byte for byte.
func mendEntries(image []byte) (mended []byte, changed bool, err error) {
	mended = append(mended, image[:min(len(image), imageHeaderBytes)]...)
	var others []byte
	order := socketOrder{}
	err = eachFile(image, func(entry *images.FileEntry, message []byte) error {
		if entry.Tfd != nil && mendTimer(entry.Tfd) {
			changed = true
			var err error
			if message, err = proto.Marshal(entry); err != nil {
				return fmt.Errorf("%w: %w", errFilesImage, err)
			}
		}
		if entry.Usk != nil && order.tooLate(entry.Usk) {
			changed = true
			mended = appendMessage(mended, message)
			return nil
		}
		others = appendMessage(others, message)
		return nil
	})
	return append(mended, others...), changed, err
}

func appendMessage(to, message []byte) []byte {
	return append(binary.NativeEndian.AppendUint32(to, uint32(len(message))), message...)
}

// socketOrder records the inodes of unix sockets so far: true if the socket's own entry was seen,
// false if only a peer's entry refers to it.
type socketOrder map[uint32]bool

// tooLate reports whether a listening socket comes after the client of a connection that it has not
// accepted yet. CRIU dumps the client as connected to the listening socket. If CRIU reads the client first,
// it does not find the client again when it reads the listening socket: "Peer ... unresolved for ..."
// (criu/sk-unix.c of 4.2, try_resolve_unix_peer is called for sockets with a peer only).
func (o socketOrder) tooLate(s *sk_unix.UnixSkEntry) bool {
	if _, there := o[s.GetPeer()]; s.GetPeer() != 0 && !there {
		o[s.GetPeer()] = false
	}
	there, awaited := o[s.GetIno()]
	o[s.GetIno()] = true
	return s.GetState() == stateListen && awaited && !there
}

// eachFile calls do for each message of the description of open files.
func eachFile(image []byte, do func(entry *images.FileEntry, message []byte) error) error {
	if len(image) < imageHeaderBytes {
		return errFilesImage
	}
	for rest := image[imageHeaderBytes:]; len(rest) > 0; {
		if len(rest) < 4 {
			return errFilesImage
		}
		size := uint64(binary.NativeEndian.Uint32(rest))
		if size > uint64(len(rest)-4) {
			return errFilesImage
		}
		message := rest[4 : 4+size]
		rest = rest[4+size:]
		var entry images.FileEntry
		if err := proto.Unmarshal(message, &entry); err != nil {
			return fmt.Errorf("%w: %w", errFilesImage, err)
		}
		if err := do(&entry, message); err != nil {
			return err
		}
	}
	return nil
}

// mendTimer corrects a timerfd and reports whether that was necessary.
//
// The kernel reports a periodic timer that has expired and was not read with no time left (fs/timerfd.c
// restarts it only when it is read). So are all timers whose period ends while the container is frozen.
// CRIU would restore such a timer as one that is off, and it would never tick again. mendTimer gives it the
// least time instead; the resulting tick is one of those that were counted.
//
// A timer with an absolute time has its remaining time in the image. CRIU adds the seconds of the clock to
// it but not the fraction (criu/pie/restorer.c, timerfd_arm), so the timer would expire up to a second too
// early. As a relative timer it expires when the remaining time has passed. Timers that a change of the
// clock cancels have to stay absolute.
func mendTimer(timer *timerfd.TimerfdEntry) bool {
	changed := false
	if timer.GetVsec() == 0 && timer.GetVnsec() == 0 && (timer.GetIsec() != 0 || timer.GetInsec() != 0) {
		timer.Vnsec = proto.Uint64(1)
		timer.Ticks = proto.Uint64(max(timer.GetTicks(), 1) - 1)
		changed = true
	}
	if timer.GetSettimeFlags() == unix.TFD_TIMER_ABSTIME {
		timer.SettimeFlags = proto.Uint32(0)
		changed = true
	}
	return changed
}
