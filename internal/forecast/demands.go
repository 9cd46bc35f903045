package forecast

import (
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// DemandsOf is what a user wants of a migration whose mode is chosen, where policies refuse some modes.
func DemandsOf(request *api.MigrateRequest, settings migration.Settings, use migration.PostCopyUse,
	refused map[migration.Mode]string) (predict.Demands, error) {
	demands := predict.Demands{
		Settings: settings, Deadline: seconds(request.DeadlineSeconds), MaxBytes: request.MaxBytes,
		NoPostCopy: request.NoPostCopy,
		Refused:    refused,
	}
	// Who says what to do with rounds that do not converge does not want anything else to be done.
	named := request.OnNoConvergence != "" && settings.OnNoConvergence != migration.TurnHybrid
	demands.NoPostCopy = demands.NoPostCopy || named && request.Mode == string(migration.Auto)
	asked, byAuto := migration.SplitLimits(use, settings)
	demands.Split = asked
	if request.Mode == string(migration.Auto) {
		demands.Split = byAuto
	}
	splits := request.Mode == string(migration.PostCopy) || request.Mode == string(migration.Hybrid) ||
		settings.OnNoConvergence == migration.TurnHybrid
	switch auto := request.Mode == string(migration.Auto); {
	case settings.OnNoConvergence == migration.TurnHybrid && refused[migration.Hybrid] != "":
		return demands, fmt.Errorf("%w: --on-no-convergence %s is not allowed: %s", api.ErrRefused,
			migration.Hybrid, refused[migration.Hybrid])
	case splits && asked.Forbidden:
		return demands, fmt.Errorf("%w: %s", api.ErrRefused, asked.Refuses(0))
	case demands.NoPostCopy && settings.MaxSplit != 0:
		return demands, fmt.Errorf("%w: --no-post-copy and --max-split %s exclude each other: choose one",
			api.ErrInvalid, settings.MaxSplit)
	case demands.NoPostCopy && settings.Spill:
		return demands, fmt.Errorf("%w: --no-post-copy and --spill exclude each other: choose one",
			api.ErrInvalid)
	case !auto && (demands.Deadline != 0 || demands.MaxBytes != 0 || demands.NoPostCopy):
		return demands, fmt.Errorf("%w: --deadline, --max-bytes and --no-post-copy apply only to mode %s",
			api.ErrInvalid, migration.Auto)
	case demands.Deadline < 0 || demands.MaxBytes < 0:
		return demands, fmt.Errorf("%w: --deadline and --max-bytes must not be negative", api.ErrInvalid)
	case demands.NoPostCopy && settings.OnNoConvergence == migration.TurnHybrid:
		return demands, fmt.Errorf("%w: --no-post-copy and --on-no-convergence hybrid exclude each other: "+
			"choose one", api.ErrInvalid)
	case demands.MaxBytes > 0 && demands.MaxBytes < leastMaxBytes:
		return demands, fmt.Errorf("%w: --max-bytes %d: must be at least %d", api.ErrInvalid,
			demands.MaxBytes, int64(leastMaxBytes))
	}
	return demands, nil
}

// leastMaxBytes is what the state of the smallest container takes.
const leastMaxBytes = 16 << 10

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
