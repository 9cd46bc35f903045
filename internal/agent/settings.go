package agent

import (
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
)

// settings of a migration, which its user may change while it is under way.
type settings struct {
	mu     sync.Mutex
	values migration.Settings
}

// Get implements rounds.Settings.
func (s *settings) Get() migration.Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values
}

// Set implements rounds.Settings.
func (s *settings) Set(values migration.Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = values
}

// change applies what a user wants changed, all of it or nothing.
func (s *settings) change(request *api.SetRequest, split *rounds.Split) (migration.Settings, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := s.values
	if request.DowntimeTargetSeconds != nil {
		values.DowntimeTarget = seconds(*request.DowntimeTargetSeconds)
	}
	if request.MaxRounds != nil {
		values.MaxRounds = int(*request.MaxRounds)
	}
	if request.BandwidthLimitBitsPerSecond != nil {
		values.BandwidthLimit = *request.BandwidthLimitBitsPerSecond
	}
	if request.OnNoConvergence != nil {
		values.OnNoConvergence = migration.NoConvergence(*request.OnNoConvergence)
	}
	values, err := values.Complete()
	if err != nil {
		return values, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if request.OnNoConvergence != nil && values.OnNoConvergence == migration.TurnHybrid {
		if why := split.Request(); why != "" {
			return values, fmt.Errorf("%w: %s", errRefused, why)
		}
	}
	s.values = values
	return values, nil
}

// Change implements rpc.Leaving.
func (s *source) Change(request *api.SetRequest) error {
	values, err := s.settings.change(request, s.memory.Split())
	if err != nil {
		return err
	}
	s.link.Limit(values.BandwidthLimit)
	return nil
}

// Switch implements rpc.Leaving.
func (s *source) Switch() error {
	if why := s.memory.Split().Request(); why != "" {
		return fmt.Errorf("%w: %s", errRefused, why)
	}
	return s.memory.Turn().Ask("a user requested it")
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
