package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
)

// positiveVar adds a flag for a time greater than 0: to the agent, 0 means that none was given. Without a
// default, start is 0.
func positiveVar(cmd *cobra.Command, value *time.Duration, name string, start time.Duration, usage string) {
	flag := &cli.Parsed[time.Duration]{Kind: "duration", Parse: func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err == nil && d <= 0 {
			err = errors.New("must be more than 0, such as 1m30s")
		}
		*value = d
		return d, err
	}}
	if *value = start; start > 0 {
		flag.Text = start.String()
	}
	cmd.Flags().Var(flag, name, usage)
}
