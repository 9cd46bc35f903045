package vet

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzImages replaces one image of a genuine dump by arbitrary bytes. The images are either accepted or
// refused; nothing else may happen.
func FuzzImages(f *testing.F) {
	entries, err := os.ReadDir("testdata/docker")
	check(f, err)
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".img" {
			continue
		}
		data, err := os.ReadFile(filepath.Join("testdata/docker", entry.Name()))
		check(f, err)
		f.Add(entry.Name(), data)
	}
	f.Add("userns-1.img", []byte("\x06\x49\x47\x55"))
	f.Add("apparmor.img", []byte{})
	f.Add("ghost-file-1.img", []byte{})
	d := genuine(f)
	f.Fuzz(func(t *testing.T, name string, image []byte) {
		if filepath.Base(name) != name || len(name) > 64 || name == "." || name == ".." {
			return
		}
		path := filepath.Join(d.dir, name)
		before, missing := os.ReadFile(path)
		if err := os.WriteFile(path, image, 0o600); err != nil {
			return // not a file name
		}
		_, err := Images(d.dir, d.agreed)
		if missing != nil {
			check(t, os.Remove(path))
		} else {
			check(t, os.WriteFile(path, before, 0o600))
		}
		if err != nil && !errors.Is(err, ErrRefused) {
			t.Fatal(err)
		}
	})
}

// FuzzProgram runs arbitrary filters of system calls.
func FuzzProgram(f *testing.F) {
	f.Add([]byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}, uint32(1))
	f.Add([]byte{5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 6, 0, 0, 0, 0, 0, 5, 0}, uint32(2))
	f.Add([]byte{0x34, 0, 0, 0, 0, 0, 0, 0}, uint32(3))
	f.Fuzz(func(_ *testing.T, data []byte, call uint32) {
		if program, err := parseProgram(data); err == nil {
			run(program, call)
		}
	})
}
