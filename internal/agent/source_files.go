package agent

import (
	"context"

	treefiles "github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/wire/stream"
)

// sendingFiles makes what sends the container's files.
func sendingFiles(s *source) *files.Sender {
	leaving := leavingFiles{s}
	return files.NewSender(s.agent.ctx, files.SenderConfig{
		Container: leaving, Link: leaving, Migration: leaving, Settings: &s.settings, Choices: leaving,
		Figures: s.move.Tracker, Target: s.target.Name,
		Dir: s.agent.moves.Dir(s.id()), Cores: s.agent.cores, Log: s.agent.log,
	})
}

// leavingFiles is what the files of a source need of it.
type leavingFiles struct{ *source }

// Trees implements files.Container.
func (l leavingFiles) Trees(ctx context.Context) ([]treefiles.Tree, error) {
	return l.volumes.Trees(ctx)
}

// Processes implements files.Container. After the stop there are none.
func (l leavingFiles) Processes(ctx context.Context) ([]int, error) {
	if l.packets.StoppedNow() {
		return nil, nil
	}
	return l.agent.engines.EngineFor(l.definition).Processes(ctx, l.definition.ID)
}

// OpenMore implements files.Link.
func (l leavingFiles) OpenMore(ctx context.Context, purpose string, workers int) (*stream.Session, error) {
	return l.link.OpenMore(ctx, purpose, workers)
}

// Codec implements files.Link.
func (l leavingFiles) Codec() stream.Codec { return l.link.Codec() }

// BytesPerSecond implements files.Link.
func (l leavingFiles) BytesPerSecond() float64 { return l.link.BytesPerSecond() }

// OfferedBytes implements files.Migration.
func (l leavingFiles) OfferedBytes() int64 { return l.offered.GetTreesBytes() }

// KeptThere implements files.Migration.
func (l leavingFiles) KeptThere() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reservation.GetKeptFilesBytes() > 0
}

// Lost implements files.Migration.
func (l leavingFiles) Lost(why error) {
	l.move.Happen(migration.PeerLost{Error: "files: " + why.Error()})
}

// Ended implements files.Migration.
func (l leavingFiles) Ended() <-chan struct{} { return l.move.Done() }

// Auto implements files.Choices.
func (l leavingFiles) Auto() bool { return l.auto != nil }

// Wanted implements files.Choices.
func (l leavingFiles) Wanted() string { return l.memory.Turn().Wanted() }
