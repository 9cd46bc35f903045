package criu

import (
	"encoding/binary"
	"testing"

	images "github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/fown"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/regfile"
	"google.golang.org/protobuf/proto"
)

func TestKernelFacts(t *testing.T) {
	tool, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	facts, err := tool.KernelFacts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if facts.device == noDevice || len(facts.data) == 0 {
		t.Errorf("device %#x, %d bytes", facts.device, len(facts.data))
	}
}

// filesImageOf makes an image that describes open files.
func filesImageOf(t testing.TB, names ...string) []byte {
	t.Helper()
	image := make([]byte, imageHeaderBytes)
	zero := proto.Uint32(0)
	for i, name := range names {
		data, err := proto.Marshal(&images.FileEntry{
			Type: images.FdTypes_REG.Enum(), Id: proto.Uint32(uint32(i)),
			Reg: &regfile.RegFileEntry{
				Id: proto.Uint32(uint32(i)), Flags: zero, Pos: proto.Uint64(0), Name: proto.String(name),
				Fown: &fown.FownEntry{Uid: zero, Euid: zero, Signum: zero, PidType: zero, Pid: zero},
				Ext:  proto.Bool(name[0] != '/'),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		image = binary.NativeEndian.AppendUint32(image, uint32(len(data)))
		image = append(image, data...)
	}
	return image
}

func TestSharedFiles(t *testing.T) {
	found, err := sharedFiles(filesImageOf(t, "/etc/passwd", "file[0:a077]", "file[0:a077]", "file[1b:10]"))
	if err != nil {
		t.Fatal(err)
	}
	want := []SharedFile{{Key: "file[0:a077]", Inode: 0xa077}, {Key: "file[1b:10]", Inode: 0x10}}
	if len(found) != 2 || found[0] != want[0] || found[1] != want[1] {
		t.Errorf("%+v, want %+v", found, want)
	}
	for _, name := range []string{"file[0:a077", "file[0:0xa]", "tty[1:2]", "file[0:1] "} {
		if _, err := sharedFiles(filesImageOf(t, name)); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

func FuzzSharedFiles(f *testing.F) {
	f.Add(filesImageOf(f, "/etc/passwd", "file[0:a077]"))
	f.Fuzz(func(_ *testing.T, image []byte) { _, _ = sharedFiles(image) })
}
