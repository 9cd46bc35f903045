package push

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// TestAwaitFilledEnds: memory that comes slowly is waited for, and memory that does not come is told.
func TestAwaitFilledEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		here := func() (memory.FillReport, error) {
			if time.Since(began) < 10*time.Minute {
				return memory.FillReport{State: memory.Filling, Pages: 10, LeftPages: 10}, nil
			}
			return memory.FillReport{State: memory.Filled, Pages: 10}, nil
		}
		if err := AwaitFilled(t.Context(), here); err != nil {
			t.Errorf("memory that is here: %v", err)
		}
		began = time.Now()
		slow := func() (memory.FillReport, error) {
			left := 10 - int64(time.Since(began)/time.Minute)
			if left == 0 {
				return memory.FillReport{State: memory.Filled, Pages: 10}, nil
			}
			return memory.FillReport{State: memory.Filling, Pages: 10, LeftPages: left, RemoteLeft: left}, nil
		}
		if err := AwaitFilled(t.Context(), slow); err != nil || time.Since(began) < 10*time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		stuck := func() (memory.FillReport, error) {
			return memory.FillReport{State: memory.Filling, Pages: 43, LeftPages: 25, RemoteLeft: 25}, nil
		}
		if err := AwaitFilled(t.Context(), stuck); err == nil ||
			!strings.Contains(err.Error(), "25 of 43 pages are still at the node") {
			t.Errorf("memory that does not come: %v", err)
		}
	})
}
