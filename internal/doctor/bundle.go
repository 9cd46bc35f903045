package doctor

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// programInContainer is the path of the trial's program in its container, whose root file system has
// nothing else.
const programInContainer = "/trial"

var errDynamic = errors.New("program is not statically linked")

// writeBundle makes an OCI bundle with a copy of the program and nothing else.
func writeBundle(directory string, program []string, spec *specs.Spec) error {
	if err := checkStatic(program[0]); err != nil {
		return err
	}
	root := filepath.Join(directory, "rootfs")
	for _, sub := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, sub), 0o755); err != nil {
			return fmt.Errorf("make the trial's root file system: %w", err)
		}
	}
	if err := copyFile(filepath.Join(root, programInContainer), program[0]); err != nil {
		return fmt.Errorf("copy the program into the trial's root file system: %w", err)
	}
	content, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the trial's configuration: %w", err)
	}
	if err := os.WriteFile(filepath.Join(directory, "config.json"), content, 0o600); err != nil {
		return fmt.Errorf("write the trial's configuration: %w", err)
	}
	return nil
}

// trialSpec returns the smallest specification that still resembles a real container.
func trialSpec(args []string, name, netns, criuConfig string) *specs.Spec {
	return &specs.Spec{
		Version: "1.0.2", // the latest that runc 1.1 knows
		Process: &specs.Process{
			Args:            append([]string{programInContainer}, args...),
			Env:             []string{"PATH=/"},
			Cwd:             "/",
			NoNewPrivileges: true,
		},
		Root:     &specs.Root{Path: "rootfs"},
		Hostname: "trial",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
				Options: []string{"nosuid", "mode=755", "size=64k"}},
		},
		Annotations: map[string]string{"org.criu.config": criuConfig},
		Linux: &specs.Linux{
			CgroupsPath: "/" + name,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace, Path: netns},
			},
		},
	}
}

// checkStatic refuses a program that needs a loader: the container has none.
func checkStatic(program string) error {
	file, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("read the program for the trial: %w", err)
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return fmt.Errorf("%s cannot run in the trial's container: %w", program, errDynamic)
		}
	}
	return nil
}

func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		return errors.Join(err, target.Close())
	}
	return target.Close()
}
