package files

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// What is supposed of reading: files that have to be looked at again in the freeze are in the page
// cache, mostly.
const readBytesPerSecond = 1e9

// Copy sends the files while the container runs, again and again what has changed meanwhile,
// until what is left takes a part of the downtime that is wanted, or does not get less. Memory
// comes after that: it changes faster.
func (s *Sender) Copy(ctx context.Context) error {
	if err := s.openFor(ctx); err != nil {
		return err
	}
	began, useless, before, ahead := time.Now(), 0, time.Duration(0), len(s.history)
	for {
		if err := s.Round(ctx); err != nil {
			return err
		}
		settings, rounds := s.config.Settings.Get(), len(s.history)
		left := s.TakeInFreeze()
		// What has changed in the first round only the second one finds; if the first was short it
		// cannot be much.
		guessed := rounds == 1 && s.history[0].Duration > settings.DowntimeTarget/2
		why := ""
		if before > 0 && left > time.Duration(predict.FileRoundsShrink*float64(before)) {
			useless++
		} else {
			useless = 0
		}
		switch {
		case !guessed && left <= settings.DowntimeTarget/2:
			return nil
		case s.config.Choices.Auto() && ahead == 0 && outrun(s.history):
			return s.endOutrun()
		case useless >= predict.FileRoundsPatience:
			why = "further rounds do not reduce that"
		case settings.MaxRounds > 0 && rounds-ahead >= settings.MaxRounds:
			why = "the limit of rounds is reached"
		case settings.Timeout > 0 && time.Since(began) > settings.Timeout/2:
			why = "half of the allowed time has passed"
		default:
			why = s.config.Choices.Wanted()
		}
		if why != "" {
			return s.doNotConverge(left, why)
		}
		if !guessed {
			before = left
			s.config.Figures.ExpectFiles(left)
		}
	}
}

// ErrNotConverging says that the migration was given up, as the user has chosen, because another round of
// files would not make the freeze shorter.
var ErrNotConverging = errors.New("the container writes its files faster than they can be sent")

// doNotConverge goes on, or gives up if that was chosen. A hybrid cannot help: nothing runs
// without its files.
func (s *Sender) doNotConverge(left time.Duration, why string) error {
	what := fmt.Sprintf("after %d rounds, changing files take about %d ms of the freeze, and %s",
		len(s.history), left.Milliseconds(), why)
	if s.config.Settings.Get().OnNoConvergence == migration.GiveUp {
		return fmt.Errorf("%w: %s, and --on-no-convergence is give-up; allow a longer --downtime-target, "+
			"or choose --on-no-convergence %s", ErrNotConverging, what, migration.StopAndCopy)
	}
	s.config.Figures.Decided(what)
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

// endOutrun ends a migration whose freeze would be longer than if nothing had been copied ahead,
// in a mode that nobody has named.
func (s *Sender) endOutrun() error {
	first, last := s.history[0], s.history[len(s.history)-1]
	return fmt.Errorf("%w: %d MB of files were copied in %.0f s, and then %d MB had changed; the container "+
		"keeps running here: choose --mode cold for a freeze of about %.0f s, --mode restart, a faster "+
		"link, or a time at which the container writes less",
		errOutrun, first.SentBytes/1e6, first.Duration.Seconds(), last.SentBytes/1e6,
		(first.Duration + last.Duration).Seconds())
}

var errOutrun = errors.New("the container writes its files faster than they can be sent")

// TakeInFreeze is how long a freeze is longer for the files: what changed lately changes
// again, what may have changed unseen is read again, and all is looked at.
func (s *Sender) TakeInFreeze() time.Duration {
	if len(s.history) == 0 {
		return 0
	}
	last := s.history[len(s.history)-1]
	seconds := float64(last.UnsettledBytes) / readBytesPerSecond
	if bytes := s.config.Link.BytesPerSecond(); bytes > 0 && len(s.history) > 1 {
		seconds += float64(last.SentBytes) / bytes
	} else if bytes > 0 { // of the first round all is new
		seconds += float64(last.UnsettledBytes) / bytes
	}
	return last.ScanTime + time.Duration(seconds*float64(time.Second))
}

// Follow does a round if the last was long ago, in comparison to what a round costs.
func (s *Sender) Follow(ctx context.Context) error {
	const share = 10 // of the time goes to rounds in which nothing has changed
	last := s.history[len(s.history)-1]
	if time.Since(s.at) < share*last.Duration {
		return nil
	}
	return s.Round(ctx)
}

// Cold makes what finds changes, for a migration in which all is sent in the freeze. What
// the target has from an earlier attempt is compared before.
func (s *Sender) Cold(ctx context.Context) error {
	if !s.config.Migration.KeptThere() {
		return s.Make(ctx)
	}
	if err := s.openFor(ctx); err != nil {
		return err
	}
	return s.Round(ctx)
}

// Checkpoints does so many rounds, as the user wants. The container stops soon after the last of them, before
// which await waits for what else must be there.
func (s *Sender) Checkpoints(ctx context.Context, wanted int, await func(context.Context) error) error {
	if err := s.openFor(ctx); err != nil {
		return err
	}
	for n := range wanted {
		if n == wanted-1 {
			if err := await(ctx); err != nil {
				return err
			}
		}
		if err := s.Round(ctx); err != nil {
			return err
		}
		if n > 0 { // what changes is known then
			s.config.Figures.ExpectFiles(s.TakeInFreeze())
		}
	}
	return nil
}

// EndRounds does the last round before the container is stopped, if the number of rounds is not the user's,
// and ends the connection: what is left goes over the migration's.
func (s *Sender) EndRounds(ctx context.Context) error {
	defer s.Close()
	if len(s.history) == 0 || s.config.Settings.Get().Checkpoints != 0 {
		return nil
	}
	return s.Follow(ctx)
}
