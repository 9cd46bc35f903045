package criu

import (
	"bytes"
	"encoding/binary"
	"testing"

	images "github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/fown"
	sk_opts "github.com/checkpoint-restore/go-criu/v7/crit/images/sk-opts"
	sk_unix "github.com/checkpoint-restore/go-criu/v7/crit/images/sk-unix"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/timerfd"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

func timerEntry(flags uint32, ticks, vsec, vnsec, insec uint64) *images.FileEntry {
	return &images.FileEntry{
		Type: images.FdTypes_TIMERFD.Enum(), Id: proto.Uint32(1),
		Tfd: &timerfd.TimerfdEntry{
			Id: proto.Uint32(1), Flags: proto.Uint32(2), Clockid: proto.Uint32(1), Ticks: proto.Uint64(ticks),
			Fown: &fown.FownEntry{
				Uid: proto.Uint32(0), Euid: proto.Uint32(0), Signum: proto.Uint32(0),
				PidType: proto.Uint32(0), Pid: proto.Uint32(0),
			},
			SettimeFlags: proto.Uint32(flags), Vsec: proto.Uint64(vsec), Vnsec: proto.Uint64(vnsec),
			Isec: proto.Uint64(0), Insec: proto.Uint64(insec),
		},
	}
}

func filesOf(t *testing.T, entries ...*images.FileEntry) []byte {
	t.Helper()
	image := []byte("magicals")
	for _, entry := range entries {
		message, err := proto.MarshalOptions{Deterministic: true}.Marshal(entry)
		must(t, err)
		image = binary.NativeEndian.AppendUint32(image, uint32(len(message)))
		image = append(image, message...)
	}
	return image
}

func TestMendFiles(t *testing.T) {
	other := &images.FileEntry{Type: images.FdTypes_REG.Enum(), Id: proto.Uint32(9)}
	sound := []*images.FileEntry{other, timerEntry(0, 0, 0, 0, 0), timerEntry(0, 3, 0, 7, 5),
		timerEntry(3, 0, 9, 0, 0), timerEntry(0, 1, 0, 0, 0)}
	image := filesOf(t, sound...)
	if got, changed, err := mendEntries(image); err != nil || changed || !bytes.Equal(got, image) {
		t.Errorf("entries that are right were changed: %t, %v", changed, err)
	}
	for name, pair := range map[string][2]*images.FileEntry{
		"expired, not read":      {timerEntry(0, 1, 0, 0, 5), timerEntry(0, 0, 0, 1, 5)},
		"expired, ticks counted": {timerEntry(0, 8, 0, 0, 5), timerEntry(0, 7, 0, 1, 5)},
		"absolute":               {timerEntry(1, 0, 9, 8, 0), timerEntry(0, 0, 9, 8, 0)},
		"absolute and expired":   {timerEntry(1, 1, 0, 0, 5), timerEntry(0, 0, 0, 1, 5)},
	} {
		got, changed, err := mendEntries(filesOf(t, other, pair[0], other))
		if want := filesOf(t, other, pair[1], other); err != nil || !changed || !bytes.Equal(got, want) {
			t.Errorf("%s: %t, %v\n%x\n%x", name, changed, err, got, want)
		}
	}
}

func unixEntry(state, ino, peer uint32) *images.FileEntry {
	return &images.FileEntry{
		Type: images.FdTypes_UNIXSK.Enum(), Id: proto.Uint32(ino),
		Usk: &sk_unix.UnixSkEntry{
			Id: proto.Uint32(ino), Ino: proto.Uint32(ino), Type: proto.Uint32(unix.SOCK_STREAM),
			State: proto.Uint32(state),
			Flags: proto.Uint32(0), Uflags: proto.Uint32(0), Backlog: proto.Uint32(0),
			Peer: proto.Uint32(peer),
			Fown: timerEntry(0, 0, 0, 0, 0).GetTfd().GetFown(), Name: []byte{},
			Opts: &sk_opts.SkOptsEntry{
				SoSndbuf: proto.Uint32(0), SoRcvbuf: proto.Uint32(0), SoSndTmoSec: proto.Uint64(0),
				SoSndTmoUsec: proto.Uint64(0), SoRcvTmoSec: proto.Uint64(0), SoRcvTmoUsec: proto.Uint64(0),
			},
		},
	}
}

// TestMendOrder checks that a listening socket comes before sockets that wait to be accepted by it.
func TestMendOrder(t *testing.T) {
	other := timerEntry(0, 0, 0, 0, 0)
	first, second := unixEntry(stateListen, 5, 0), unixEntry(stateListen, 6, 0)
	waits, pair, pairOf := unixEntry(stateEstablished, 7, 6), unixEntry(stateEstablished, 8, 9),
		unixEntry(stateEstablished, 9, 8)
	for name, c := range map[string]struct{ image, want []byte }{
		"right":        {filesOf(t, pair, second, other, waits, pairOf, first), nil},
		"no one waits": {filesOf(t, pair, other, second, pairOf, first), nil},
		"the client first": {filesOf(t, pair, waits, other, first, second, pairOf),
			filesOf(t, second, pair, waits, other, first, pairOf)},
	} {
		want := c.want
		if want == nil {
			want = c.image
		}
		got, changed, err := mendEntries(c.image)
		if err != nil || changed != (c.want != nil) || !bytes.Equal(got, want) {
			t.Errorf("%s: %t, %v\n%x\n%x", name, changed, err, got, want)
		}
	}
}

func FuzzMendFiles(f *testing.F) {
	f.Add([]byte("magicals"))
	f.Add(append([]byte("magicals"), 4, 0, 0, 0, 8, 1, 16, 9))
	f.Add(append([]byte("magicals"), 255, 255, 255, 255))
	f.Fuzz(func(t *testing.T, image []byte) {
		mended, changed, err := mendEntries(image)
		if err == nil && !changed && !bytes.Equal(mended, image) {
			t.Errorf("%x became %x without a change", image, mended)
		}
	})
}
