package pager

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

func FuzzRecord(f *testing.F) {
	for _, one := range []record{
		{kind: recordFault, task: 7, address: 0x7000}, {kind: recordDone}, {kind: recordGivenUp, text: "no"},
		{kind: recordRefused},
	} {
		f.Add(one.encode(nil))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		one, err := readRecord(r)
		if err != nil {
			if !errors.Is(err, memory.ErrMalformed) && !errors.Is(err, io.EOF) &&
				!errors.Is(err, io.ErrUnexpectedEOF) {
				t.Error(err)
			}
			return
		}
		if again := one.encode(nil); !bytes.Equal(again, data[:len(data)-r.Len()]) {
			t.Errorf("%x is read as %+v, which is %x", data, one, again)
		}
	})
}

func FuzzGreeting(f *testing.F) {
	for _, maps := range [][]memory.TaskMap{nil,
		{{Task: 3, Areas: []memory.Area{{Start: 0x1000, Pages: 2}, {Start: 0x9000, Pages: 1}}}}} {
		data, err := encodeGreeting(maps)
		must(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		maps, err := readGreeting(bytes.NewReader(data))
		if err != nil {
			return
		}
		again, err := encodeGreeting(maps)
		must(t, err)
		back, err := readGreeting(bytes.NewReader(again))
		if err != nil || len(back) != len(maps) {
			t.Errorf("%d maps, and again %d, %v", len(maps), len(back), err)
		}
	})
}
