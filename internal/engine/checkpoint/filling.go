package checkpoint

import (
	"fmt"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// RefuseFilling refuses to move a container whose memory is still being filled, or has lost pages: a dump
// would not notice missing pages, and would succeed without them. path is the pager's report.
func RefuseFilling(path string) error {
	report, err := pager.ReadReport(path)
	if err != nil {
		return err
	}
	switch {
	case report.State == memory.Filling && report.RemoteLeft > 0:
		return fmt.Errorf("%w: %d of %d pages of its memory are missing after its last move, %d of them "+
			"still at the node "+
			"where it was; try again when they have come",
			engine.ErrBusy, report.LeftPages, report.Pages, report.RemoteLeft)
	case report.State == memory.Filling:
		return fmt.Errorf("%w: %d of %d pages of its memory are still being filled after its last move; "+
			"try again in a moment",
			engine.ErrBusy, report.LeftPages, report.Pages)
	case report.LostPages > 0:
		return fmt.Errorf("%d pages of its memory were lost in its last move, and would be zeros after "+
			"another; start the container again",
			report.LostPages)
	}
	return nil
}

// ExamineMemory checks whether a container's memory is complete. Its text does not change from one call to
// the next.
func ExamineMemory(path string) ([]engine.Problem, error) {
	report, err := pager.ReadReport(path)
	switch {
	case err != nil:
		return nil, err
	case report.State == memory.Filling:
		return []engine.Problem{{
			What:   "the container's memory",
			Why:    "it is still being filled after its last move",
			Remedy: "try again in a moment",
		}}, nil
	case report.LostPages > 0:
		return []engine.Problem{{
			What: "the container's memory",
			Why: "pages of it were lost in the container's last move; another move would silently turn " +
				"them into zeros",
			Remedy: "stop the container and start it again",
		}}, nil
	}
	return nil, nil
}
