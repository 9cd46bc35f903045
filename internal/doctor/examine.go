package doctor

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Options of an examination.
type Options struct {
	// Program runs in the trial's container: the path of a static binary and the arguments with which it
	// calls ServeTrial.
	Program []string
	// State is the node's state directory.
	State string
	// More are checks that ask other programs about this machine; false: there is nothing to report.
	More []func(context.Context) (Requirement, bool)
	// TrialOnly leaves out the list of requirements.
	TrialOnly bool
}

// Examine checks this machine's requirements and runs the trial.
func Examine(ctx context.Context, options Options) Report {
	return examine(ctx, thisMachine(options.State), options)
}

func examine(ctx context.Context, m machine, options Options) Report {
	report := Report{Host: host(), Requirements: []Requirement{}}
	if !options.TrialOnly {
		report.Requirements = look(ctx, m, allChecks())
		for _, further := range options.More {
			if requirement, is := further(ctx); is {
				report.Requirements = append(report.Requirements, requirement)
			}
		}
	}
	report.Trial = tryOut(ctx, m, options)
	report.Works = report.Trial.Result == Passed
	for _, requirement := range report.Requirements {
		if requirement.Level == Required && requirement.Status == Missing {
			report.Works = false
		}
	}
	return report
}

// look runs all checks in parallel: some make namespaces or mounts and wait for the kernel.
func look(ctx context.Context, m machine, checks []check) []Requirement {
	requirements := make([]Requirement, len(checks))
	var all sync.WaitGroup
	for i, c := range checks {
		all.Go(func() { requirements[i] = c.requirement(ctx, m) })
	}
	all.Wait()
	return requirements
}

// tryOut runs the trial if its requirements are met.
func tryOut(ctx context.Context, m machine, options Options) Trial {
	if m.user() != 0 {
		return notRun(errors.New("only root can checkpoint and restore"),
			Advice{General: "run as root: sudo godwit doctor"})
	}
	criu, err := m.findTool("criu", "GODWIT_CRIU")
	if err != nil {
		return notRun(fmt.Errorf("criu: %w", err), adviceCRIU)
	}
	runc, err := m.findTool("runc", "GODWIT_RUNC")
	if err != nil {
		return notRun(fmt.Errorf("runc: %w", err), adviceRunc)
	}
	return runTrial(ctx, tools{criu: criu, runc: runc}, options.Program, options.State)
}
