package postcopy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire/stream"
)

// say is a section that one side sends.
type say struct {
	push bool
	kind string
	data []byte
	end  bool // the final marker instead
}

// speak sends sections, and reads everything until the connections end.
func speak(urgent, push Session, sections []say) {
	for _, s := range []Session{urgent, push} {
		go func() {
			for {
				if _, err := s.Next(); err != nil {
					return
				}
			}
		}()
	}
	for _, one := range sections {
		s := urgent
		if one.push {
			s = push
		}
		if one.end {
			_ = s.Finish()
			continue
		}
		if section(s, one.kind, one.data) != nil || s.Push() != nil {
			return
		}
	}
}

func encodedMap(maps ...memory.TaskMap) []byte {
	var b bytes.Buffer
	_ = memory.EncodeMap(&b, maps)
	return b.Bytes()
}

func encodedRun(task memory.Task, page int, pages uint32, zero bool) []byte {
	var b bytes.Buffer
	size := memory.PageSize()
	data := make([]byte, int(pages)*size)
	for i := range int(pages) {
		fillPage(data[i*size:(i+1)*size], task, uint64((page+i)*size))
	}
	if zero {
		data = nil
	}
	_ = memory.NewEncoder(&b).Put(memory.Run{Task: task, Address: uint64(page * size), Pages: pages,
		Zero: zero}, data)
	return b.Bytes()
}

func faultOf(task memory.Task, page int) []byte {
	return appendFault(nil, memory.RemoteFault{Task: task, Address: uint64(page * memory.PageSize())})
}

func reportOf(state memory.FillState) []byte {
	data, _ := encodeStatus(memory.FillReport{State: state})
	return data
}

// TestLyingTarget: a source names a target's violation of the protocol.
func TestLyingTarget(t *testing.T) {
	noLeaks(t)
	remote := flat(100)
	all := say{true, kindMissing, encodedMap(remote...), false}
	for name, c := range map[string]struct {
		remote   []memory.TaskMap
		sections []say
		want     string
	}{
		"a page that is not remote": {remote, []say{{false, kindFault, faultOf(1, 100), false}},
			"page at 0x64000 of task 1"},
		"another task": {remote, []say{{false, kindFault, faultOf(2, 1), false}}, "task 2"},
		"half a fault": {remote, []say{{false, kindFault, make([]byte, 13), false}},
			"13 bytes"},
		"no want": {remote, []say{{false, kindFault, nil, false}}, "no page"},
		"too many faults": {remote,
			[]say{{false, kindFault, make([]byte, faultBytes*(maxFaults+1)), false}}, "more than 4096"},
		"a section on urgent": {remote, []say{{false, kindStatus, nil, false}}, `"status"`},
		"a section on push":   {remote, []say{{true, "files", nil, false}}, `"files"`},
		"two maps":            {remote, []say{all, all}, `"missing"`},
		"a map of more than remote": {remote, []say{{true, kindMissing, encodedMap(flat(101)...), false}},
			"101 pages"},
		"a map that is none": {nil, []say{{true, kindMissing, make([]byte, 12), false}},
			"malformed"},
		"a map of too many pages": {nil,
			[]say{{true, kindMissing, encodedMap(flat(maxPages + 1)...), false}}, "more than"},
		"a report that is none": {remote, []say{{true, kindStatus, []byte("x"), false}}, "report"},
		"a report of a strange state": {remote, []say{{true, kindStatus, reportOf("happy"), false}},
			"happy"},
		"a long report": {remote,
			[]say{{true, kindStatus, bytes.Repeat([]byte(" "), maxStatus+1), false}}, "more than 65536"},
		"the end before all is there": {remote, []say{{true, "", nil, true}}, "has not said"},
		"a page before a map":         {nil, []say{{false, kindFault, faultOf(2, 1), false}, all}, "task 2"},
		"complete, and then some more": {remote, []say{{true, kindComplete, reportOf(memory.Filled), false},
			{true, kindComplete, reportOf(memory.Filled), false}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := NewServer(ServerConfig{Pages: &frozen{}, Remote: c.remote})
			must(t, err)
			l := link(t)
			go speak(l.targetUrgent, l.targetPush, c.sections)
			err = server.Serve(t.Context(), l.sourceUrgent, l.sourcePush)
			if c.want == "" {
				must(t, err)
			} else if !errors.Is(err, ErrPeer) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want something with %q", err, c.want)
			}
		})
	}
}

// TestLyingSource: a target names a source's violation of the protocol, and accepts no such page.
func TestLyingSource(t *testing.T) {
	noLeaks(t)
	short := encodedRun(1, 5, 2, false)
	for name, c := range map[string]struct {
		sections []say
		want     string
	}{
		"an urgent page that nobody asked for": {[]say{{false, kindPages, encodedRun(1, 8, 1, false), false}},
			"not all of them were"},
		"several urgent pages for one": {[]say{{false, kindPages, encodedRun(1, 7, 2, false), false}},
			"not all of them were"},
		"a page that is not missing": {[]say{{true, kindPages, encodedRun(1, 100, 1, false), false}},
			"not all are remote"},
		"more than is missing": {[]say{{true, kindPages, encodedRun(1, 99, 2, true), false}},
			"not all are remote"},
		"another task": {[]say{{true, kindPages, encodedRun(2, 9, 2, true), false}},
			"task 2"},
		"a page twice": {[]say{{true, kindPages, encodedRun(1, 9, 2, false), false},
			{true, kindPages, encodedRun(1, 10, 2, true), false}}, "had come before"},
		"half a run": {[]say{{true, kindPages, short[:len(short)-1], false}},
			"unexpected EOF"},
		"a run that is none": {[]say{{true, kindPages, make([]byte, 16), false}}, "malformed"},
		"more pages than there are": {[]say{{true, kindPages, encodedRun(1, 0, 200, false), false}},
			"more pages than allowed"},
		"changes that it cannot take": {[]say{{true, kindChanges, nil, false}}, "not told"},
		"a change that nobody asked for": {[]say{{false, kindChanges, make([]byte, changeHeader), false}},
			"task 0"},
		"a long change": {[]say{{true, kindChanges, bytes.Repeat([]byte{255}, changeHeader+9),
			false}}, "65535 bytes"},
		"half a change": {[]say{{true, kindChanges, make([]byte, changeHeader+5), false}},
			"task 0"},
		"a section":                   {[]say{{true, kindFault, nil, false}}, `"want"`},
		"a section on urgent":         {[]say{{false, "files", nil, false}}, `"files"`},
		"the end before all is there": {[]say{{true, "", nil, true}}, "100 pages are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			box := newContainer(t, flat(100))
			box.want(spot{1, uint64(7 * memory.PageSize())})
			config := ClientConfig{Pages: box, Before: past{}}
			if c.want == "not told" {
				config.Before = nil
			}
			client, err := NewClient(config)
			must(t, err)
			l := link(t)
			asked := make(chan struct{})
			go func() {
				await.Within(await.Limit, func() bool { return client.Stats().Faults > 0 })
				close(asked)
				speak(l.sourceUrgent, l.sourcePush, c.sections)
			}()
			err = client.Run(t.Context(), l.targetUrgent, l.targetPush)
			<-asked
			if !errors.Is(err, ErrPeer) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want something with %q", err, c.want)
			}
		})
	}
}

// TestLocalErrors: a failure at one side is named there, and reported to the other.
func TestLocalErrors(t *testing.T) {
	noLeaks(t)
	run := func(prepare func(*frozen, *container), want error, text string) (source, target error) {
		t.Helper()
		maps := []memory.TaskMap{{Task: 9, Areas: []memory.Area{{Start: 1 << 40, Pages: 1000}}}}
		pages, box := &frozen{}, newContainer(t, maps)
		prepare(pages, box)
		server, err := NewServer(ServerConfig{Pages: pages, Remote: maps})
		must(t, err)
		client, err := NewClient(ClientConfig{Pages: box})
		must(t, err)
		source, target = both(t.Context(), server, client, link(t))
		ours, theirs := source, target
		if want == ErrTarget {
			ours, theirs = target, source
		}
		var told *stream.PeerError
		if !errors.Is(ours, want) || !strings.Contains(ours.Error(), text) || !errors.As(theirs, &told) {
			t.Errorf("source: %v\ntarget: %v", source, target)
		}
		return source, target
	}
	run(func(f *frozen, _ *container) { f.fail.Store(true) }, ErrSource,
		"at 0x10000000000 of task 9: no such process")
	run(func(_ *frozen, c *container) { c.fail = fmt.Errorf("it is gone") }, ErrTarget, "it is gone")
	run(func(_ *frozen, c *container) { c.faults <- memory.RemoteFault{Task: 4, Address: 4096} }, ErrTarget,
		"not remote")
}

// deaf is a session whose peer never answers.
type deaf struct{ *stream.Session }

func (d deaf) Ping(ctx context.Context) (stream.Sample, error) {
	<-ctx.Done()
	return stream.Sample{}, ctx.Err()
}

// TestSilence: a source tolerates a target that does not run yet, and gives up a target without a sign of
// life.
func TestSilence(t *testing.T) {
	noLeaks(t)
	maps, box := flat(1000), newContainer(t, flat(1000))
	server, err := NewServer(ServerConfig{Pages: &frozen{}, Remote: maps, Silence: time.Second})
	must(t, err)
	l := link(t)
	err = server.Serve(t.Context(), deaf{l.sourceUrgent}, l.sourcePush)
	if !errors.Is(err, ErrSilent) {
		t.Errorf("%v", err)
	}
	client, err := NewClient(ClientConfig{Pages: box, Silence: 2 * time.Second})
	must(t, err)
	l = link(t)
	if err = client.Run(t.Context(), deaf{l.targetUrgent}, l.targetPush); !errors.Is(err, ErrSilent) {
		t.Errorf("%v", err)
	}
	l = link(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(t.Context(), l.sourceUrgent, l.sourcePush) }()
	select {
	case err := <-served:
		t.Errorf("a target that listens is given up: %v", err)
	case <-time.After(1500 * time.Millisecond):
	}
	must(t, client.Run(t.Context(), l.targetUrgent, l.targetPush))
	must(t, <-served)
}

// script is a session that delivers sections of a script, and accepts everything that is written.
type script struct {
	input []byte
}

func newScript(input []byte) *script { return &script{input: input} }

func (s *script) Begin(string, string) error  { return nil }
func (s *script) Write(p []byte) (int, error) { return len(p), nil }
func (s *script) End() error                  { return nil }
func (s *script) Push() error                 { return nil }
func (s *script) Flush() error                { return nil }
func (s *script) Finish() error               { return nil }
func (s *script) Abort(string) error          { return nil }
func (s *script) Close() error                { return nil }

// Next takes kind and length off the script.
func (s *script) Next() (stream.Section, error) {
	if len(s.input) < 3 {
		return stream.Section{}, io.EOF
	}
	kinds := []string{kindFault, kindPages, kindMissing, kindStatus, kindComplete, kindChanges, "other"}
	kind := kinds[int(s.input[0])%len(kinds)]
	n := min(int(binary.LittleEndian.Uint16(s.input[1:])), len(s.input)-3)
	data := s.input[3 : 3+n]
	s.input = s.input[3+n:]
	return stream.Section{Kind: kind, Reader: bytes.NewReader(data)}, nil
}

func scripted(kind byte, data []byte) []byte {
	return append(binary.LittleEndian.AppendUint16([]byte{kind}, uint16(len(data))), data...)
}

// FuzzServer gives a server arbitrary data of a target.
func FuzzServer(f *testing.F) {
	f.Add(scripted(0, faultOf(1, 7)),
		append(scripted(2, encodedMap(flat(50)...)), scripted(4, reportOf(memory.Filled))...), true)
	f.Add(scripted(0, make([]byte, 24)), scripted(3, reportOf(memory.Filling)), false)
	f.Fuzz(func(t *testing.T, urgent, push []byte, known bool) {
		config := ServerConfig{Pages: &frozen{}}
		if known {
			config.Remote = flat(100)
		} else if len(push) > 200 {
			return // maps with too many pages for a test
		}
		server, err := NewServer(config)
		must(t, err)
		err = server.Serve(t.Context(), newScript(urgent), newScript(push))
		if err != nil && !errors.Is(err, ErrPeer) {
			t.Error(err)
		}
		if s := server.Stats(); known && s.UrgentPages+s.PushedPages > 100 {
			t.Errorf("%+v", s)
		}
	})
}

// FuzzClient gives a client arbitrary data of a source.
func FuzzClient(f *testing.F) {
	f.Add(scripted(1, encodedRun(1, 7, 1, false)), scripted(1, encodedRun(1, 0, 7, false)))
	f.Add([]byte{}, scripted(1, encodedRun(1, 3, 8, true)))
	f.Fuzz(func(t *testing.T, urgent, push []byte) {
		box := &anything{container: newContainer(t, flat(100))}
		box.want(spot{1, uint64(7 * memory.PageSize())})
		client, err := NewClient(ClientConfig{Pages: box, Every: time.Hour, Before: past{}})
		must(t, err)
		err = client.Run(t.Context(), newScript(urgent), newScript(push))
		if !errors.Is(err, ErrPeer) && !errors.Is(err, ErrStale) {
			t.Error(err)
		}
		if s := client.Stats(); s.UrgentPages+s.PushedPages > 100 || box.pages+int(s.LeftPages) != 100 {
			t.Errorf("%+v, %d pages came", s, box.pages)
		}
	})
}

// anything is a container that accepts pages with any content.
type anything struct {
	*container
	pages int
}

func (a *anything) Put(run memory.Run, _ []byte) error {
	a.pages += int(run.Pages)
	return run.Check()
}
