package criu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	filelock "github.com/checkpoint-restore/go-criu/v7/crit/images/file-lock"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/kernel"
)

func lockImage(t testing.TB, entries ...*filelock.FileLockEntry) []byte {
	t.Helper()
	image := binary.LittleEndian.AppendUint32(nil, imageCommon)
	image = binary.LittleEndian.AppendUint32(image, imageFileLocks)
	for _, e := range entries {
		data, err := proto.Marshal(e)
		must(t, err)
		image = append(binary.LittleEndian.AppendUint32(image, uint32(len(data))), data...)
	}
	return image
}

func lockEntry(flag, kind uint32, pid, fd int32, start, length int64) *filelock.FileLockEntry {
	return &filelock.FileLockEntry{Flag: &flag, Type: &kind, Pid: &pid, Fd: &fd, Start: &start, Len: &length}
}

func TestDumpedLocks(t *testing.T) {
	const flock, description = 2, 4
	dir := t.TempDir()
	if locks, err := dumpedLocks(dir); err != nil || len(locks) > 0 {
		t.Errorf("of a dump without locks: %v, %v", locks, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, locksName), lockImage(t,
		lockEntry(lockPOSIX, lockWrite, 1, 5, 120, 1), lockEntry(flock, lockWrite, 1, 6, 0, 0),
		lockEntry(lockPOSIX, 0, 7, 5, 128, 1), lockEntry(description, lockWrite, 1, 7, 0, 0),
		lockEntry(lockPOSIX, 0, 1, 5, 128, 0)), 0o600))
	locks, err := dumpedLocks(dir)
	want := map[int][]kernel.RecordLock{
		1: {{FD: 5, Write: true, Start: 120, Length: 1}, {FD: 5, Start: 128}},
		7: {{FD: 5, Start: 128, Length: 1}},
	}
	if err != nil || !reflect.DeepEqual(locks, want) {
		t.Errorf("%+v, %v, want %+v", locks, err, want)
	}
}

func FuzzDumpedLocks(f *testing.F) {
	f.Add(lockImage(f, lockEntry(lockPOSIX, lockWrite, 1, 5, 120, 1)))
	f.Add(lockImage(f, lockEntry(lockPOSIX, lockWrite, 1, -5, 120, -1)))
	f.Add([]byte("no image"))
	f.Fuzz(func(t *testing.T, image []byte) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, locksName), image, 0o600))
		locks, err := dumpedLocks(dir)
		if err != nil {
			return
		}
		for pid, all := range locks {
			for _, lock := range all {
				if lock.FD < 0 || lock.Start < 0 || lock.Length < 0 {
					t.Fatalf("process %d: %+v", pid, lock)
				}
			}
		}
	})
}
