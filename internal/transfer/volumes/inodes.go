package volumes

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/inodes"
)

const (
	// inodePatience is how long a program may have a file open in passing: a short-lived process, or a
	// connection for one request.
	inodePatience = 500 * time.Millisecond
	inodePause    = 20 * time.Millisecond
)

// ExamineInodes finds files that the container has open and whose inodes its programs remember. They would
// have others at the target, except on storage on which both nodes see the same.
func (m *Mover) ExamineInodes(ctx context.Context, definition engine.Definition,
	chosen Chosen) ([]engine.Problem, error) {
	kept := chosen.keepInodes()
	for deadline := time.Now().Add(inodePatience); ; {
		pids, err := m.engines.EngineFor(definition).Processes(ctx, definition.ID)
		if err != nil {
			return nil, err
		}
		found, err := m.openFiles.Find(ctx, definition.ID, pids, kept)
		if err != nil || len(found) == 0 {
			return nil, err
		}
		if time.Now().After(deadline) {
			return inodeProblems(found), nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(inodePause):
		}
	}
}

// keepInodes lists where the volumes are in the container whose files keep their inodes.
func (c Chosen) keepInodes() []string {
	var paths []string
	for i, same := range c.Same {
		if same {
			paths = append(paths, c.Volumes[i].Path)
		}
	}
	return paths
}

const (
	inodeWhy = "the process knows the file by its inode, which changes with the move; connections that the " +
		"process opens later would not see the locks of those from before, and could destroy the database"
	inodeRemedy = "have the program close it; or keep it on storage on which both nodes see the same " +
		"inodes; or use --new-inodes if the process opens the database only once (in WAL mode, or only to " +
		"read), or closes all connections before it opens the next"
)

func inodeProblems(found []inodes.Use) []engine.Problem {
	problems := make([]engine.Problem, len(found))
	for i, use := range found {
		problems[i] = engine.Problem{What: use.String(), Why: inodeWhy, Remedy: inodeRemedy}
	}
	return problems
}
