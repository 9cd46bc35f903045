package rounds

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
)

// What is touched first leaves in the freeze: a round trip for each page would be longer.
const (
	touchedTime  = 20 * time.Millisecond // of the link
	leastTouched = 16                    // pages
)

// Foresee tells how much memory the container will take at the target, and why that is not possible if its
// limit there does not allow it. Once it runs there is no way back.
func (m *Rounds) Foresee(limit int64) (refusal string, err error) {
	use, err := m.pages.Use()
	if err != nil {
		return "", err
	}
	m.figures.MemoryGrows(use.Whole - use.Parts)
	if limit > 0 && use.Whole+use.Shared > limit && use.Whole > use.Parts {
		return fmt.Sprintf("its processes share memory copy-on-write, of which each has its own copy "+
			"after the move: they would take %d MiB, and the limit is %d "+
			"MiB", (use.Whole+use.Shared)>>20, limit>>20), nil
	}
	return "", nil
}

// LeaveShared has the dump leave out what the processes share, if it can; otherwise it is not carried here.
func (m *Rounds) LeaveShared(leave func(inodes []uint64) (bool, error)) error {
	inodes, err := m.pages.Shared()
	if err != nil || len(inodes) == 0 {
		return err
	}
	left, err := leave(inodes)
	if err != nil || left {
		return err
	}
	return m.pages.GiveShared("CRIU dumps it")
}

// Last sends what was written last.
func (m *Rounds) Last(ctx context.Context) error {
	m.frozen = true
	_, err := m.round(ctx, m.pages.Final)
	return err
}

// Finish sends what is left after the dump, which changes a few pages itself, and the map of all
// that there must be.
func (m *Rounds) Finish(ctx context.Context, dump Dump, out Sections) error {
	if _, err := m.round(ctx, m.pages.Final); err != nil {
		return err
	}
	left, err := dump.LeftOut()
	if err != nil {
		return err
	}
	_, err = m.round(ctx, func(ctx context.Context, sink memory.Sink) (memory.RoundStats, error) {
		return m.pages.Complete(ctx, sink, left)
	})
	if err != nil {
		return err
	}
	if err := m.leaveRemote(ctx, dump, out); err != nil {
		return err
	}
	maps, err := m.pages.Map()
	if err != nil {
		return err
	}
	var encoded bytes.Buffer
	if err := memory.EncodeMap(&encoded, maps); err != nil {
		return err
	}
	number, err := m.config.Sender.Barrier(ctx) // The target waits for it before it looks at the map.
	if err != nil {
		return err
	}
	return out.Whole(precopy.KindMap, strconv.FormatUint(number, 10), encoded.Bytes())
}

// leaveRemote tells the target which pages come later. Those that will be touched at once leave now.
func (m *Rounds) leaveRemote(ctx context.Context, dump Dump, out Sections) error {
	if !m.pages.Leaving() {
		return nil
	}
	touched, err := dump.Touched()
	if err != nil {
		m.config.Log.Warn("cannot tell which pages the container touches first; they are sent on "+
			"request", "error", err)
	}
	most := max(leastTouched, int(m.config.Link.BytesPerSecond()*touchedTime.Seconds())/memory.PageSize())
	_, err = m.round(ctx, func(ctx context.Context, sink memory.Sink) (memory.RoundStats, error) {
		return m.pages.SendRemote(ctx, sink, touched, most)
	})
	if err != nil {
		return err
	}
	m.touched = touched
	m.remote, m.hot, err = m.pages.Remote()
	if err != nil {
		return err
	}
	var encoded bytes.Buffer
	if err := memory.EncodeMap(&encoded, m.remote); err != nil {
		return err
	}
	return out.Whole(precopy.KindRemote, "", encoded.Bytes())
}

// Remote are the pages that follow when the container was handed over, and those of them that it will
// probably touch soon. They are known after Finish.
func (m *Rounds) Remote() (remote, hot []memory.TaskMap) { return m.remote, m.hot }

// Soon are at most so many of the pages that follow which are probably touched next.
func (m *Rounds) Soon(most int) ([]memory.RemoteFault, error) {
	return m.pages.Soon(m.touched, most)
}
