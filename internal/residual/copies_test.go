package residual

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// keep adds a residual copy of so many pages.
func keep(t *testing.T, f *Copies, number, pages int) *Copy {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	kept := memory.NewResidual(file, 1<<30)
	err = kept.Put(memory.Run{Task: 1, Pages: uint32(pages)}, make([]byte, pages*memory.PageSize()))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(int64(number), 0)
	one := &Copy{
		of:    Origin{ContainerID: "c" + strconv.Itoa(number), Started: start},
		pages: kept, until: start.Add(time.Minute),
	}
	f.Add(one)
	return one
}

// has reports whether a residual copy still has its memory.
func (c *Copy) has(t *testing.T) bool {
	t.Helper()
	there, err := c.pages.ReadPage(1, 0, make([]byte, memory.PageSize()))
	if err != nil {
		t.Fatal(err)
	}
	return there
}

func TestResidualInUseStays(t *testing.T) {
	f := New(Config{})
	one := keep(t, f, 1, 1)
	if used := f.Use("c1"); used != one || f.Use("c2") != nil {
		t.Fatal("not found")
	}
	if !f.Drop("c1") || f.Drop("c1") || f.Use("c1") != nil {
		t.Error("it was not dropped")
	}
	if !one.has(t) {
		t.Error("it went while it was used")
	}
	one.Release()
	if one.has(t) {
		t.Error("it did not go")
	}
	(*Copy)(nil).Release()
}

func TestResidualsGoOldestFirst(t *testing.T) {
	f := New(Config{})
	all := []*Copy{keep(t, f, 1, 10), keep(t, f, 2, 10), keep(t, f, 3, 10)}
	f.Expire(all[0].until.Add(time.Nanosecond))
	f.Yield(1)
	if all[0].has(t) || all[1].has(t) || !all[2].has(t) || len(f.List()) != 1 {
		t.Error("the wrong ones went")
	}
	again := keep(t, f, 3, 10)
	if all[2].has(t) || !again.has(t) || len(f.List()) != 1 {
		t.Error("an older one of the same container stays")
	}
	f.limit = 100 * int64(memory.PageSize())
	if room, err := f.room(95*int64(memory.PageSize()), 0); err != nil || again.has(t) || room != f.limit {
		t.Errorf("room for %d bytes, %v", room, err)
	}
	f.Yield(1)
}

// TestResidualsStayIfNothingIsWon: the others do not go for one that has no room anyway; and what
// it takes already is no memory more.
func TestResidualsStayIfNothingIsWon(t *testing.T) {
	f, page := New(Config{}), int64(memory.PageSize())
	one := keep(t, f, 1, 10)
	f.limit = 100 * page
	if room, err := f.room(101*page, 101*page); err != nil || !one.has(t) || room > 90*page {
		t.Errorf("room for %d bytes, %v", room, err)
	}
	f.limit = 0
	if room, err := f.room(page, 1<<50); err != nil || room < 1<<47 {
		t.Errorf("room for %d bytes, %v", room, err)
	}
	f.Yield(1)
}
