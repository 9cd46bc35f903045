package pipeline

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/memory"
)

// envHolder makes the test binary a process that holds this many MiB.
const envHolder = "GODWIT_TEST_HOLD"

func TestMain(m *testing.M) {
	var mebibytes int
	if _, err := fmt.Sscanf(os.Getenv(envHolder), "%d", &mebibytes); err == nil {
		content := make([]byte, mebibytes<<20)
		_, _ = rand.Read(content)
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(int(content[0]) * 0)
	}
	os.Exit(m.Run())
}

// holder starts such a process.
func holder(t testing.TB, mebibytes int) int {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", envHolder, mebibytes))
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the process says %q: %v", line, err)
	}
	return cmd.Process.Pid
}

// BenchmarkRound measures the path from the process to the frame: find, read, look for zeros, hash, look
// up, frame.
func BenchmarkRound(b *testing.B) {
	for name, cache := range map[string]int64{"no cache": -1, "cache": 0} {
		b.Run(name, func(b *testing.B) {
			pid := holder(b, 1024)
			source := memory.NewSource(memory.SourceConfig{Processes: func() ([]int,
				error) {
				return []int{pid}, nil
			}})
			defer func() { must(b, source.Close()) }()
			b.SetBytes(1 << 30)
			var total memory.RoundStats
			used := time.Duration(0)
			for b.Loop() {
				b.StopTimer()
				must(b, source.Close()) // so that everything counts again
				key, err := NewKey()
				must(b, err)
				s, err := NewSender(SenderConfig{Key: key, CacheBytes: cache})
				must(b, err)
				must(b, s.AddLane(discard{}))
				b.StartTimer()
				before := processor(b)
				stats, err := source.Round(b.Context(), s)
				must(b, err)
				_, err = s.Barrier(b.Context())
				must(b, err)
				used += processor(b) - before
				total.Scan, total.Read, total.Write = total.Scan+stats.Scan, total.Read+stats.Read,
					total.Write+stats.Write
				if n := s.Stats(); n.ContentPages < 1<<18 {
					b.Fatalf("%+v", n)
				}
				s.Close()
			}
			for unit, d := range map[string]time.Duration{"scan-ns/op": total.Scan, "read-ns/op": total.Read,
				"put-ns/op": total.Write, "processor-ns/op": used} {
				b.ReportMetric(float64(d.Nanoseconds())/float64(b.N), unit)
			}
		})
	}
}

// processor returns the processor time of this process: on a busy machine the clock says little.
func processor(b *testing.B) time.Duration {
	var usage unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
