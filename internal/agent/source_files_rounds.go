package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
)

// What is supposed of reading: files that have to be looked at again in the freeze are in the page
// cache, mostly.
const readBytesPerSecond = 1e9

// copyFiles sends the files while the container runs, again and again what has changed meanwhile,
// until what is left takes a part of the downtime that is wanted, or does not get less. Memory
// comes after that: it changes faster.
func (s *source) copyFiles(ctx context.Context) error {
	if err := s.openFiles(ctx); err != nil {
		return fmt.Errorf("open a connection for files to %s: %w", s.target.Name, err)
	}
	began, useless, before, ahead := time.Now(), 0, time.Duration(0), len(s.files.history)
	for {
		if _, err := s.files.round(ctx); err != nil {
			return err
		}
		settings, rounds := s.settings.Get(), len(s.files.history)
		left := s.filesTakeInFreeze()
		// What has changed in the first round only the second one finds; if the first was short it
		// cannot be much.
		guessed := rounds == 1 && s.files.history[0].Duration > settings.DowntimeTarget/2
		why := ""
		if before > 0 && left > time.Duration(predict.FileRoundsShrink*float64(before)) {
			useless++
		} else {
			useless = 0
		}
		switch {
		case !guessed && left <= settings.DowntimeTarget/2:
			return nil
		case s.auto != nil && ahead == 0 && outrun(s.files.history):
			return s.filesOutrun()
		case useless >= predict.FileRoundsPatience:
			why = "further rounds do not reduce that"
		case settings.MaxRounds > 0 && rounds-ahead >= settings.MaxRounds:
			why = "the limit of rounds is reached"
		case settings.Timeout > 0 && time.Since(began) > settings.Timeout/2:
			why = "half of the allowed time has passed"
		case s.memory.Turn().Wanted() != "":
			why = s.memory.Turn().Wanted()
		}
		if why != "" {
			return s.filesDoNotConverge(left, why)
		}
		if !guessed {
			before = left
			s.move.tracker.ExpectFiles(left)
		}
	}
}

// filesDoNotConverge goes on, or gives up if that was chosen. A hybrid cannot help: nothing runs
// without its files.
func (s *source) filesDoNotConverge(left time.Duration, why string) error {
	what := fmt.Sprintf("after %d rounds, changing files take about %d ms of the freeze, and %s",
		len(s.files.history), left.Milliseconds(), why)
	if s.settings.Get().OnNoConvergence == migration.GiveUp {
		return fmt.Errorf("%w: %s, and --on-no-convergence is give-up; allow a longer --downtime-target, "+
			"or choose --on-no-convergence %s", rounds.ErrNotConverging, what, migration.StopAndCopy)
	}
	s.move.tracker.Decided(what)
	return nil
}

// outrunTime is how long a round takes that shows what a program writes, and not what it happened to write.
const outrunTime = 5 * time.Second

// outrun reports whether nearly as much was written while all files were copied as there is of them:
// what comes after that is more each time. Programs that use their files again, as a broker does,
// leave much less.
func outrun(history []copies.Stats) bool {
	if len(history) < 2 {
		return false
	}
	first, last := history[0], history[len(history)-1]
	return last.Duration > outrunTime &&
		float64(last.SentBytes) > predict.FileRoundsShrink*float64(first.SentBytes)
}

// filesOutrun ends a migration whose freeze would be longer than if nothing had been copied ahead,
// in a mode that nobody has named.
func (s *source) filesOutrun() error {
	history := s.files.history
	first, last := history[0], history[len(history)-1]
	return fmt.Errorf("%w: %d MB of files were copied in %.0f s, and then %d MB had changed; the container "+
		"keeps running here: choose --mode cold for a freeze of about %.0f s, --mode restart, a faster "+
		"link, or a time at which the container writes less",
		errFilesOutrun, first.SentBytes/1e6, first.Duration.Seconds(), last.SentBytes/1e6,
		(first.Duration + last.Duration).Seconds())
}

var errFilesOutrun = errors.New("the container writes its files faster than they can be sent")

// filesTakeInFreeze is how long a freeze is longer for the files: what changed lately changes
// again, what may have changed unseen is read again, and all is looked at.
func (s *source) filesTakeInFreeze() time.Duration {
	if len(s.files.history) == 0 {
		return 0
	}
	last := s.files.history[len(s.files.history)-1]
	seconds := float64(last.UnsettledBytes) / readBytesPerSecond
	if bytes := s.link.BytesPerSecond(); bytes > 0 && len(s.files.history) > 1 {
		seconds += float64(last.SentBytes) / bytes
	} else if bytes > 0 { // of the first round all is new
		seconds += float64(last.UnsettledBytes) / bytes
	}
	return last.ScanTime + time.Duration(seconds*float64(time.Second))
}

// followFiles does a round of files if the last was long ago, in comparison to what a round costs.
func (s *source) followFiles(ctx context.Context) error {
	const share = 10 // of the time goes to rounds in which nothing has changed
	last := s.files.history[len(s.files.history)-1]
	if time.Since(s.files.at) < share*last.Duration {
		return nil
	}
	_, err := s.files.round(ctx)
	return err
}
