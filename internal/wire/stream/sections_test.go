package stream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
)

// TestSectionsDoNotMix checks that writers wait for the section that is being written.
func TestSectionsDoNotMix(t *testing.T) {
	near, far := pair(t, Options{})
	const senders, size = 8, 100 << 10
	var counted atomic.Int64
	out := NewSections(near, func(bytes int64) { counted.Add(bytes) })
	var all sync.WaitGroup
	for n := range senders {
		content := bytes.Repeat([]byte{byte(n)}, size)
		all.Go(func() {
			if err := out.Whole("test", fmt.Sprint(n), content); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := errors.Join(out.Uncounted("frame", content), out.Push()); err != nil {
				t.Error(err)
			}
		})
	}
	failed := make(chan error, 1)
	go func() {
		all.Wait()
		failed <- near.Finish()
	}()
	came := 0
	for {
		section, err := far.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(section)
		if err != nil {
			t.Fatal(err)
		}
		if len(content) != size || bytes.Count(content, content[:1]) != size || section.Kind == "frame" &&
			section.Name != "" {
			t.Errorf("section %s %s has %d bytes, of several senders", section.Kind, section.Name,
				len(content))
		}
		came++
	}
	if err := <-failed; err != nil || came != 2*senders || counted.Load() != senders*size {
		t.Errorf("%d sections came, %d bytes were counted, %v", came, counted.Load(), err)
	}
}

// TestSectionsAfterTheEnd checks that a section that cannot begin does not keep other callers from trying.
func TestSectionsAfterTheEnd(t *testing.T) {
	near, _ := pair(t, Options{})
	out := NewSections(near, nil)
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 1<<20)
	for out.Whole("test", "", content) == nil { // what the buffers take
	}
	for range 2 {
		if out.Whole("test", "", content) == nil || out.Uncounted("test", content) == nil {
			t.Error("a section was sent after the end")
		}
	}
	_ = errors.Join(out.Push(), out.Flush()) // neither waits for a section that has failed
}
