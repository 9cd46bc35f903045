package pages

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/quick"
	"time"

	"github.com/godwit/godwit/internal/await"
)

// listening runs a workload in this process and returns its client.
func listening(t *testing.T, c Config) (*Asker, *world) {
	t.Helper()
	c.Listen = 1 // questions come over a pipe
	c.fillIn()
	memory, err := allocate(c)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(c, memory, io.Discard)
	for _, p := range w.parts {
		p.fill()
	}
	end, ended := make(chan os.Signal), make(chan struct{})
	go func() {
		w.run(end)
		close(ended)
	}()
	mine, theirs := net.Pipe()
	go w.serve(theirs)
	t.Cleanup(func() {
		_ = mine.Close()
		end <- syscall.SIGTERM
		<-ended
	})
	return NewAsker(mine), w
}

func ask(t *testing.T, a *Asker, question string) (seen Accessed) {
	t.Helper()
	if err := a.Ask(question, &seen); err != nil {
		t.Fatal(err)
	}
	return seen
}

func TestAsk(t *testing.T) {
	const size, hot = 4096 * 64, 4096 * 16
	for _, order := range []string{Scan, Jump} {
		a, _ := listening(t, Config{Size: size, Hot: hot, Threads: 2, Rate: 1e6})
		before := ask(t, a, AskTell).Accesses
		if seen := ask(t, a, AskHot); seen.Accesses-before < hot/4096 || seen.Bad > 0 {
			t.Errorf("%s: before %d accesses, after looking at what is hot %+v", order, before, seen)
		}
		ask(t, a, order)
		await.True(t, "1000 accesses", func() bool { return ask(t, a, AskTell).Accesses >= 1000 })
		ask(t, a, AskRest)
		var result Result
		if err := a.Ask(AskCheck, &result); err != nil || result.Pages != 64 || result.Checked < 64 ||
			result.Bad > 0 {
			t.Errorf("%s: checked: %+v, %v", order, result, err)
		}
	}
}

// TestAskOfDamage: the workload reports damage that it sees.
func TestAskOfDamage(t *testing.T) {
	a, w := listening(t, Config{Size: 4096 * 4})
	if err := w.each(func(p *part) { p.memory[5000]++ }); err != nil {
		t.Fatal(err)
	}
	if seen := ask(t, a, AskHot); seen.Bad != 1 {
		t.Errorf("a damaged page is told as %+v", seen)
	}
	var answer map[string]any
	if err := a.Ask("nonsense", &answer); err != nil || answer["error"] == nil {
		t.Errorf("nonsense is answered by %v, %v", answer, err)
	}
}

// TestSteps: a step holds the times from its own beginning to that of the next, and is at most a thirtieth
// of them wide. (146 years have no next step.)
func TestSteps(t *testing.T) {
	holds := func(n uint64) bool {
		d := time.Duration(n >> (2 + n%62))
		i := step(d)
		from, to := stepBegin(i), stepBegin(i+1)
		return i >= 0 && i < waitSizes && from <= d && d < to &&
			(to-from == 1 || float64(to-from) <= float64(from)/30)
	}
	if err := quick.Check(holds, nil); err != nil {
		t.Error(err)
	}
}

func TestQuantiles(t *testing.T) {
	w, other := &waits{}, &waits{}
	for i := range 1000 {
		w.add(time.Duration(i) * time.Microsecond)
		other.add(time.Duration(i) * time.Microsecond)
	}
	w.merge(other)
	for _, c := range []struct {
		part float64
		want time.Duration
	}{{0.5, 500 * time.Microsecond}, {0.99, 990 * time.Microsecond}, {1, 999 * time.Microsecond}} {
		if got := w.quantile(c.part); got < c.want || float64(got) > 1.04*float64(c.want) {
			t.Errorf("quantile %v of up to 999 us is %v", c.part, got)
		}
	}
	if (&waits{}).quantile(0.99) != 0 {
		t.Error("nothing has a quantile")
	}
}
