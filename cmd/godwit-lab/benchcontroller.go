package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/bench/controller"
	"github.com/godwit/godwit/internal/cli"
)

const benchControllerLong = `Measure the cost of the controller: the time of a decision in a large cluster,
the memory of an idle controller, the size of the program, and the CPU time and memory of a controller with
thousands of agents, which all connect again after a restart.

This process simulates the agents. Each has its own certificate and its own stream, and tells its free memory
every three seconds. The controller is the real program with its own etcd. Both share the machine's cores, so
the machine should do nothing else.

By default, the benchmark measures the godwit-controller beside godwit-lab, or the one in PATH. A run takes
about 5 minutes. With --quick it takes less, and the figures are less certain.`

func newBenchControllerCommand() *cobra.Command {
	var config controller.Config
	var file string
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Measure the cost of the controller",
		Long:  benchControllerLong,
		Example: `  godwit-lab bench controller --json controller.json
  godwit-lab bench controller --quick --nodes 500`,
		Args: cli.NoArguments,
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "json", "", "write the result to this file")
	flags.StringVar(&config.Program, "program", "", "path of the godwit-controller to measure")
	flags.IntVar(&config.Nodes, "nodes", 10_000, "number of simulated nodes, with ten containers each")
	flags.BoolVar(&config.Quick, "quick", false, "use shorter intervals")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if config.Nodes < 1 || config.Nodes > 60_000 {
			return cli.Usage(fmt.Errorf("--nodes %d: must be from 1 to 60000", config.Nodes))
		}
		config.Say = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
		if err := findController(&config.Program); err != nil {
			return err
		}
		result, err := controller.Run(cmd.Context(), config)
		if len(result.Rows) == 0 {
			return err
		}
		if textErr := result.WriteText(cmd.OutOrStdout()); err == nil {
			err = textErr
		}
		if file != "" {
			if writeErr := result.WriteFile(file); err == nil {
				err = writeErr
			}
		}
		return err
	}
	return cmd
}

// findController finds the program to measure unless it is named.
func findController(program *string) error {
	if *program != "" {
		return nil
	}
	const name = "godwit-controller"
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), name)
		if _, err := os.Stat(beside); err == nil {
			*program = beside
			return nil
		}
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("find the controller: %w; give --program", err)
	}
	*program = found
	return nil
}
