package state

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

func pageOf(content byte) []byte { return bytes.Repeat([]byte{content}, memory.PageSize()) }

func filePage(content []byte) memory.FilePage { return memory.FilePage{Content: content} }

// TestStateRefersToWhatIsKnown sends pages of which some went ahead, while the file grows by parts of pages.
func TestStateRefersToWhatIsKnown(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	pages := filepath.Join(from, "pages-1.img")
	whole := bytes.Join([][]byte{pageOf(1), pageOf(2), pageOf(9), pageOf(1), pageOf(3)}, nil)
	var pieces, refers []*piece
	sender := NewSender(from, collect(&pieces))
	sender.known, sender.refer = NewKnown(Layers{}), collect(&refers)
	for _, content := range []byte{1, 2, 3, 2} {
		if !sender.known.Add(filePage(pageOf(content))) {
			t.Fatal("there is no room")
		}
	}
	growing := make(chan struct{})
	for _, size := range []int{100, memory.PageSize() + 100, len(whole)} {
		put(t, pages, whole[:size])
		if err := sender.pass(growing, hasPages); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(from, "core-1.img"), whole)
	sent, err := sender.Rest()
	if err != nil {
		t.Fatal(err)
	}
	known, err := ReceiveKnown(bytes.NewReader(sender.known.ahead.all(sender.known.content)), Layers{})
	if err != nil || len(known) != 3*memory.PageSize() {
		t.Fatalf("%d bytes went ahead, %v", len(known), err)
	}
	receiver, travelled := NewReceiver(to, int64(2*len(whole))), 0
	for _, p := range refers {
		travelled += p.Len()
		if err := receiver.Refers(p.name, &p.Buffer, known); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range pieces {
		if err := receiver.Piece(p.name, &p.Buffer); err != nil {
			t.Fatal(err)
		}
	}
	if err := receiver.Check(sent); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(to, "pages-1.img"))
	if err != nil || !bytes.Equal(got, whole) || travelled > memory.PageSize()+100 {
		t.Errorf("%d bytes came out of %d, the right ones: %v, %v", len(got), travelled,
			bytes.Equal(got, whole), err)
	}
}

// FuzzReferred: whatever comes, no more is made of it than a piece, and nothing beyond what is known is read.
func FuzzReferred(f *testing.F) {
	known := NewKnown(Layers{})
	known.Add(filePage(pageOf(1)))
	f.Add(known.encode(append(pageOf(1), pageOf(2)...)))
	f.Add(binary.LittleEndian.AppendUint32(nil, literal))
	f.Add(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 1), 7))
	f.Fuzz(func(t *testing.T, section []byte) {
		pages, err := decodeReferred(bytes.NewReader(section), known.content)
		if err == nil && (len(pages) > statePiece || len(pages)%memory.PageSize() != 0) {
			t.Errorf("%d bytes", len(pages))
		}
		if err == nil {
			again, err := decodeReferred(bytes.NewReader(known.encode(pages)), known.content)
			if err != nil || !bytes.Equal(again, pages) {
				t.Errorf("it comes out otherwise: %v", err)
			}
		}
	})
}
