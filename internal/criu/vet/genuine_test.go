package vet

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
)

// dump is a genuine dump of a Docker container (three processes, a volume, memory as a directory, an init,
// the usual filter), which tests change. The images are as they came to a target, with all images that are
// checked.
type dump struct {
	t      testing.TB
	dir    string
	agreed Agreed
}

// genuine copies the dump.
func genuine(t testing.TB) *dump {
	t.Helper()
	d := &dump{t: t, dir: t.TempDir()}
	check(t, os.CopyFS(d.dir, os.DirFS("testdata/docker")))
	var spec specs.Spec
	readJSON(t, "config.json", &spec)
	d.agreed = FromSpec(&spec)
	readJSON(t, "outside.json", &d.agreed.Outside)
	d.agreed.NetworkHeld = true
	return d
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readJSON(t testing.TB, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "docker", name))
	check(t, err)
	check(t, json.Unmarshal(data, into))
}

func (d *dump) read(name string) []byte {
	d.t.Helper()
	data, err := os.ReadFile(filepath.Join(d.dir, name))
	check(d.t, err)
	return data
}

func (d *dump) write(name string, data []byte) {
	d.t.Helper()
	check(d.t, os.WriteFile(filepath.Join(d.dir, name), data, 0o600))
}

// head returns the size of an image's header.
func head(name string) int {
	if name == "inventory.img" {
		return 4
	}
	return 8
}

// change decodes each entry of an image into m, calls how, and writes the entry back, unless how returns
// false.
func change[M proto.Message](d *dump, name string, m M, how func(index int, m M) bool) {
	d.t.Helper()
	data := d.read(name)
	out := append([]byte(nil), data[:head(name)]...)
	index := 0
	for rest := data[head(name):]; len(rest) > 0; index++ {
		size := binary.LittleEndian.Uint32(rest)
		proto.Reset(m)
		check(d.t, proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(rest[4:4+size], m))
		rest = rest[4+size:]
		if !how(index, m) {
			continue
		}
		out = appendEntry(d.t, out, m)
	}
	d.write(name, out)
}

// add appends an entry to an image, which it creates if necessary.
func (d *dump) add(name string, magic uint32, m proto.Message) {
	d.t.Helper()
	data, err := os.ReadFile(filepath.Join(d.dir, name))
	if err != nil {
		data = binary.LittleEndian.AppendUint32(nil, magicCommon)
		data = binary.LittleEndian.AppendUint32(data, magic)
	}
	d.write(name, appendEntry(d.t, data, m))
}

func appendEntry(t testing.TB, data []byte, m proto.Message) []byte {
	t.Helper()
	entry, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
	check(t, err)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(entry)))
	return append(data, entry...)
}
