package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// lastingGroup is the control group of the unit godwit-containers.service, for processes that outlive the
	// agent. In the agent's own group, systemd would report them as left over when it starts the agent.
	lastingGroup = "/sys/fs/cgroup/godwit.slice/godwit-containers.service"
	// agentUnit is the unit that runs the agent.
	agentUnit = "godwit-agent.service"
)

// StartLasting starts a command that outlives this process: in a session of its own and, if this process is
// in the agent's systemd unit, in the control group of godwit-containers.service. On a host with control
// groups of version 1, the command stays in the agent's groups. StartLasting sets cmd.SysProcAttr.
func StartLasting(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	if !isAgentUnit(string(own)) {
		return cmd.Start()
	}
	group, err := os.Open(lastingGroup)
	if err != nil {
		return cmd.Start() // godwit-containers.service does not run
	}
	defer group.Close()
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd()) // clone3(2), Linux 5.7
	return cmd.Start()
}

// isAgentUnit reports whether /proc/self/cgroup, with this content, places the process in the agent's unit
// on a host that has only version 2 of control groups.
func isAgentUnit(own string) bool {
	group, only := strings.CutPrefix(strings.TrimSpace(own), "0::")
	return only && !strings.Contains(group, "\n") && filepath.Base(group) == agentUnit
}
