package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/doctor"
	"github.com/godwit/godwit/scripts"
)

func newSetupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Install what Godwit needs on this machine",
	}
	cmd.AddCommand(newSetupCRIUCommand())
	return cmd
}

const setupCRIULong = `Setup criu makes sure that this machine has a CRIU and a runc that can move containers.

A real trial decides, as in "godwit doctor --trial": if it passes, setup criu changes nothing (unless
--force). Otherwise it fetches Debian's CRIU 4.2 or later and its runc with apt, and installs them with their
libraries under /opt/godwit, where every part of Godwit looks first. The system's own packages stay as they
are.

It needs root, apt and patchelf (apt-get install patchelf). Elsewhere than on Debian, GODWIT_DEBIAN_MIRROR
names the mirror. To remove what it has installed: rm -r /opt/godwit. A running agent uses them from its next
migration on.`

func newSetupCRIUCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "criu",
		Short: "Install a CRIU and a runc that work on this kernel",
		Long:  setupCRIULong,
		Example: "  godwit setup criu\n  godwit setup criu --force      # a newer version, although this " +
			"one works\n" +
			"  GODWIT_DEBIAN_MIRROR=ADDRESS godwit setup criu",
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return setupCRIU(cmd, doctor.Prefix, force) },
	}
	cmd.Flags().BoolVar(&force, "force", false, "install even if the trial passes")
	return cmd
}

func setupCRIU(cmd *cobra.Command, prefix string, force bool) error {
	if os.Geteuid() != 0 {
		return errors.New("checkpoint and restore need root: run sudo godwit setup criu")
	}
	out := cmd.OutOrStdout()
	passed, why, err := moves(cmd)
	if err != nil {
		return err
	}
	if passed && !force {
		fmt.Fprintln(out, "CRIU and runc: the trial passed; nothing to do")
		return nil
	}
	for _, variable := range []string{"GODWIT_CRIU", "GODWIT_RUNC"} {
		if path := os.Getenv(variable); path != "" {
			return fmt.Errorf("%s names %s, which Godwit uses instead of what this command installs: "+
				"unset it first", variable, path)
		}
	}
	if passed {
		fmt.Fprintf(out, "CRIU and runc: the trial passed; installing Debian's under %s nevertheless\n",
			prefix)
	} else {
		fmt.Fprintf(out, "CRIU and runc: the trial failed (%s); installing newer ones under %s\n",
			why, prefix)
	}
	if err := installCRIU(cmd, prefix); err != nil {
		return err
	}
	if passed, why, err = moves(cmd); err == nil && !passed {
		err = fmt.Errorf("the trial fails with CRIU and runc from %s, too (%s): godwit doctor says more",
			prefix, why)
	}
	if err == nil {
		fmt.Fprintln(out, "CRIU and runc: the trial passed")
	}
	return err
}

// moves runs doctor's trial, and returns why it failed.
func moves(cmd *cobra.Command) (passed bool, why string, err error) {
	program, err := os.Executable()
	if err != nil {
		return false, "", fmt.Errorf("find this program: %w", err)
	}
	report := doctor.Examine(cmd.Context(), doctor.Options{
		Program: []string{program, "doctor", "trial-server"}, State: defaultState, TrialOnly: true,
	})
	return report.Trial.Result == doctor.Passed, report.Trial.Error, nil
}

// installCRIU runs the installation script, which reports its own progress, from a directory of its own.
func installCRIU(cmd *cobra.Command, prefix string) (err error) {
	directory, err := os.MkdirTemp("", "godwit-setup-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	if err := os.CopyFS(directory, scripts.Files); err != nil {
		return fmt.Errorf("unpack the script: %w", err)
	}
	script := exec.CommandContext(cmd.Context(), "bash", filepath.Join(directory, scripts.InstallCRIU),
		prefix)
	script.Stdout, script.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if err := script.Run(); err != nil {
		return fmt.Errorf("install CRIU and runc: %w: the lines above say why", err)
	}
	return nil
}
