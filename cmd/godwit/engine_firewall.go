package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/network/foreign"
)

// firewallSettings say whether the agent may keep rules in other programs' filters.
type firewallSettings struct{ wanted bool }

func (f *firewallSettings) add(cmd *cobra.Command, usage string) {
	cmd.Flags().BoolVar(&f.wanted, "firewall", false, usage)
	if cmd.Flags().Lookup(stateFlag) == nil {
		cmd.Flags().String(stateFlag, defaultState, "state directory of the agent")
	}
}

const stateFlag = "state"

// change allows or forbids the rules in the agent's state directory.
func (f *firewallSettings) change(cmd *cobra.Command, to func(state string) error, said string) error {
	if !f.wanted {
		return nil
	}
	state, err := cmd.Flags().GetString(stateFlag)
	if err == nil {
		err = to(state)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: make the node first (godwit node init, or godwit node join)", err)
	}
	if err != nil {
		return fmt.Errorf("rules in other programs' filters: %w", err)
	}
	fmt.Fprintln(cmd.OutOrStdout(), said)
	return nil
}

// engineOrFirewall wants the name of an engine, which may be left out with --firewall.
func engineOrFirewall(f *firewallSettings) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if f.wanted && len(args) == 0 {
			return nil
		}
		return cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)(cmd, args)
	}
}

func (f *firewallSettings) allow(cmd *cobra.Command) error {
	return f.change(cmd, foreign.AllowRules,
		"The agent will add rules for containers' packets to Docker's and ufw's filters within seconds, "+
			"and again after each boot")
}

func (f *firewallSettings) forbid(cmd *cobra.Command) error {
	return f.change(cmd, foreign.ForbidRules,
		"The agent will remove its rules for containers' packets from Docker's and ufw's filters within "+
			"seconds")
}
