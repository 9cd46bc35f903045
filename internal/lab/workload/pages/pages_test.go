package pages

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"syscall"
	"testing"
	"testing/quick"
	"time"

	"github.com/klauspost/compress/zstd"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		if err := Run(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestArgsAreParsed(t *testing.T) {
	for _, want := range []Config{
		{Size: 1 << 20, Kind: Private, Hot: 1 << 20, Order: Random, Change: 4096, Threads: 1, Processes: 1},
		{
			Size: 1 << 20, Kind: Shared, Hot: 1 << 18, Rate: 5, Order: Cycle, Change: 64, Half: true,
			Threads: 4, Check: 7,
			Processes: 3, Pound: true, Listen: 7000,
		},
	} {
		args := want.Args()
		got, err := parse(args[1:])
		if err != nil || args[0] != Command || got != want {
			t.Errorf("%q is parsed as %+v, %v; want %+v", args, got, err, want)
		}
	}
}

func TestBadArgs(t *testing.T) {
	for _, bad := range []Config{
		{}, {Size: 5}, {Size: 4096, Hot: 8192}, {Size: 4096, Change: 100}, {Size: 4096, Change: 8},
		{Size: 4096, Kind: "x"},
		{Size: 4096, Order: "x"}, {Size: 4096, Rate: -1}, {Size: 1 << 20, Processes: 1000},
		{Size: 3 * 4096, Pound: true},
		{Size: 4096, Listen: 70000},
	} {
		if _, err := parse(bad.Args()[1:]); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if _, err := parse([]string{"-size=4096", "more"}); err == nil {
		t.Error("a further argument is accepted")
	}
}

// TestVerify: a page is right after any number of writes, and a different content is not.
func TestVerify(t *testing.T) {
	holds := func(number uint32, writes uint8, part uint8, half bool, damage uint16) bool {
		f := form{part: 64 << (part % 7), half: half}
		page, before := make([]byte, 4096), make([]byte, 4096)
		f.make(page, uint64(number))
		for n := range uint64(writes) {
			copy(before, page)
			f.write(page, uint64(number), n+1)
		}
		right := f.verify(page, uint64(number), uint64(writes)) == nil
		stale := writes == 0 || f.verify(before, uint64(number), uint64(writes)) != nil
		page[damage%4096] ^= 1
		return right && stale && f.verify(page, uint64(number), uint64(writes)) != nil
	}
	if err := quick.Check(holds, nil); err != nil {
		t.Error(err)
	}
}

// TestChange: a write changes no more than configured.
func TestChange(t *testing.T) {
	f := form{part: 256}
	page := make([]byte, 4096)
	f.make(page, 7)
	for n := range uint64(40) {
		before := bytes.Clone(page)
		f.write(page, 7, n+1)
		changed := 0
		for i := header; i < len(page); i++ {
			if page[i] != before[i] {
				changed++
			}
		}
		if changed > 256 || changed < 200 {
			t.Errorf("write %d has changed %d bytes, want about 256", n+1, changed)
		}
	}
}

func TestCompressibility(t *testing.T) {
	for _, c := range []struct {
		half      bool
		low, high int // per cent
	}{{false, 99, 101}, {true, 45, 65}} {
		p := part{form: form{part: 4096, half: c.half}, memory: make([]byte, 1<<20),
			written: make([]uint64, 256)}
		p.fill()
		encoder, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(encoder.EncodeAll(p.memory, nil)) * 100 / len(p.memory); got < c.low || got > c.high {
			t.Errorf("half %t: compressed to %d %%, want %d to %d", c.half, got, c.low, c.high)
		}
	}
}

// start runs the workload until it is ready.
func start(t *testing.T, c Config) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], c.Args()...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != Ready {
		t.Fatalf("the workload says %q", lines.Text())
	}
	return cmd, lines
}

func end(t *testing.T, cmd *exec.Cmd, lines *bufio.Scanner) (result Result) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() {
		t.Fatal("the workload tells no result")
	}
	if err := json.Unmarshal(lines.Bytes(), &result); err != nil {
		t.Fatalf("%q: %v", lines.Text(), err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the workload ends with %v", err)
	}
	return result
}

func TestRun(t *testing.T) {
	size := int64(4096 * 1024)
	idle := Result{Pages: 1024, Checked: 1024}
	for _, c := range []struct {
		config Config
		want   Result // Written and Checked: 0 if not known beforehand
	}{
		{Config{Size: size}, idle},
		{Config{Size: size, Kind: Shared, Processes: 2}, idle},
		{Config{Size: size, Processes: 4}, Result{Pages: 1024, Checked: 4 * 1024}},
		{Config{Size: size, Rate: 100e6, Check: 10e6, Threads: 4, Hot: size / 2, Order: Cycle, Change: 128},
			Result{Pages: 1024}},
	} {
		cmd, lines := start(t, c.config)
		if c.config.Rate > 0 {
			time.Sleep(5 * tick) // let it write; the amount does not matter
		}
		got := end(t, cmd, lines)
		if c.want.Checked == 0 {
			got.Written, got.Checked = 0, 0
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, want %+v", c.config, got, c.want)
		}
	}
}

func TestPound(t *testing.T) {
	_, lines := start(t, Config{Size: 1 << 20, Pound: true})
	var told Pounded
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &told) != nil || told.Writes == 0 {
		t.Errorf("it tells %q", lines.Text())
	}
}
