package precopy

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// TestClaimsComeIfTheyWereAnnounced: a source waits for the claims of a residual copy. It must hear of
// them also when there is nothing to refer to after all, because a staged copy came first.
func TestClaimsComeIfTheyWereAnnounced(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	full := memory.NewResidual(file, 1<<30)
	defer full.Close()
	size := memory.PageSize()
	if err := full.Put(memory.Run{Task: 1, Pages: 3}, bytes.Repeat([]byte{7}, 3*size)); err != nil {
		t.Fatal(err)
	}
	for want, residual := range map[int]*memory.Residual{0: nil, 3: full} {
		near, far := streamtest.Pair(t)
		pages, err := NewSender(func(int64) {})
		if err != nil {
			t.Fatal(err)
		}
		told := make(chan error, 1)
		go func() {
			incoming := Incoming{Data: far, Announced: true, Residual: residual, Most: 1000}
			_, _, err := incoming.Receiver(bytes.NewReader(pages.key[:]))
			told <- err
		}()
		section, err := near.Next()
		if err != nil || section.Kind != KindClaims {
			t.Fatalf("%+v, %v", section, err)
		}
		if err := pages.HearClaims(section, 1000); err != nil {
			t.Fatal(err)
		}
		if err := <-told; err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if known, err := pages.AwaitClaims(ctx); err != nil || known != want {
			t.Errorf("the source knows of %d pages, %v, want %d", known, err, want)
		}
	}
}
