// Package cli holds what the command lines of godwit and godwit-lab share: exit codes, usage errors, flags
// that check their values, help and manual pages.
package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes that the programs share. Only godwit uses ExitSignal.
const (
	ExitError  = 1
	ExitUsage  = 2
	ExitSignal = 130 // as shells report SIGINT
)

// Error is an error with an exit code.
type Error struct {
	Code int
	Err  error // nil: there is nothing to print
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Exit returns an error that ends the program with a code. Nothing is printed if err is nil.
func Exit(code int, err error) error { return &Error{code, err} }

// Usage returns a usage error.
func Usage(err error) error { return Exit(ExitUsage, err) }

// Finish completes a root command that has all of its commands: help, completion, and usage errors for
// commands and flags that do not exist.
func Finish(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usage(fmt.Errorf("%w (see %q)", err, cmd.CommandPath()+" --help"))
	})
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	// A command group without arguments of its own only prints help, so its usage shows only the form with
	// a subcommand.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}",
		"{{if and .Runnable (or (not .HasAvailableSubCommands) (ne .Use .Name))}}", 1))
	refuseUnknown(root)
}

// refuseUnknown turns an unknown command name into a usage error; cobra does not.
func refuseUnknown(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		refuseUnknown(child)
	}
	if cmd.Name() == "help" {
		show := cmd.Run
		cmd.Run = nil
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if found, rest, err := cmd.Root().Find(args); err != nil || len(rest) > 0 {
				return unknownCommand(found, rest)
			}
			show(cmd, args)
			return nil
		}
	}
	if !cmd.HasSubCommands() || cmd.Run != nil || cmd.RunE != nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args)
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

func unknownCommand(parent *cobra.Command, args []string) error {
	hint := fmt.Sprintf("see %q", parent.CommandPath()+" --help")
	if alike := parent.SuggestionsFor(args[0]); len(alike) > 0 {
		hint = "did you mean " + strings.Join(alike, " or ") + "?"
	}
	return Usage(fmt.Errorf("%s has no command %q; %s", parent.CommandPath(), args[0], hint))
}

// AddGroup adds commands to a group of the root command's help.
func AddGroup(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, command := range commands {
		command.GroupID = group
		root.AddCommand(command)
	}
}

// NoArguments rejects all arguments.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage(fmt.Errorf("%s takes no arguments, but got %q; usage: %s", cmd.CommandPath(), args[0],
			cmd.UseLine()))
	}
	return nil
}

// Arguments makes a wrong number of arguments a usage error that shows how the command is used.
func Arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usage(fmt.Errorf("%w; usage: %s", err, cmd.UseLine()))
		}
		return nil
	}
}

// PrintJSON prints a value as indented JSON.
func PrintJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// Report prints a command's error and returns the program's exit code. plain returns the error's text, and
// the code for an error without one.
func Report(errs io.Writer, program string, err error, plain func(error) (text string, code int)) int {
	if err == nil {
		return 0
	}
	var coded *Error
	if !errors.As(err, &coded) {
		text, code := plain(err)
		fmt.Fprintf(errs, "%s: %s\n", program, text)
		return code
	}
	if coded.Err != nil {
		text, _ := plain(coded.Err)
		fmt.Fprintf(errs, "%s: %s\n", program, text)
	}
	return coded.Code
}
