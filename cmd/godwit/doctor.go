package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/doctor"
)

const doctorLong = `Doctor checks each requirement: whether this machine meets it, what does not work
without it, and how to meet it.

The decisive check is a real trial: doctor checkpoints and restores a tiny container with an open TCP
connection, and the container must answer on the same connection. The exit code is 0 only if containers can
move from and to this machine.

Doctor also checks whether containers of each installed engine can come here, whether packet filters and
other networks block containers' packets, and, if an agent runs, how those packets are encrypted.

Doctor looks for CRIU and runc in the environment (GODWIT_CRIU, GODWIT_RUNC), in /opt/godwit/bin and in
PATH.`

func newDoctorCommand() *cobra.Command {
	var asJSON bool
	options := doctor.Options{}
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Check whether containers can be moved from and to this machine",
		Long:    doctorLong,
		Example: "  godwit doctor\n  godwit doctor --json",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			program, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			options.Program = []string{program, "doctor", "trial-server"}
			options.More = append(engineChecks(program), networkCheck(&options.State), overlayCheck(cmd),
				alarmCheck(cmd), policyCheck(cmd))
			report := doctor.Examine(cmd.Context(), options)
			if err := printDoctor(cmd, report, asJSON); err != nil {
				return err
			}
			if !report.Works {
				return cli.Exit(cli.ExitError, nil)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&options.TrialOnly, "trial", false, "run only the trial")
	cmd.Flags().StringVar(&options.State, "state", "/var/lib/godwit", "state directory of the agent")
	cmd.AddCommand(newTrialServerCommand())
	return cmd
}

func printDoctor(cmd *cobra.Command, report doctor.Report, asJSON bool) error {
	if !asJSON {
		return report.Print(cmd.OutOrStdout())
	}
	encoder := json.NewEncoder(cmd.OutOrStdout())
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}

// newTrialServerCommand returns the command that runs inside the trial's container.
func newTrialServerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "trial-server",
		Hidden: true,
		Args:   cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getpid() != 1 {
				return errors.New("trial-server runs only inside the trial's container")
			}
			return doctor.ServeTrial(cmd.Context())
		},
	}
}
