package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/patience"
)

const allCapabilities = 1<<41 - 1

// goodMachine has everything that is needed.
func goodMachine() machine {
	return machine{
		user:         func() int { return 0 },
		capabilities: func() (uint64, error) { return allCapabilities, nil },
		findTool:     func(name, _ string) (string, error) { return "/opt/" + name, nil },
		output: func(_ context.Context, program string, _ ...string) (string, error) {
			if program == "/opt/criu" {
				return "Version: 4.2.1\nGitID: v4.2.1\n", nil
			}
			return "runc version 1.3.6\ncommit: 1.3.6\n", nil
		},
		readFile:    func(string) ([]byte, error) { return []byte("1\n"), nil },
		loopbackUp:  func() (bool, error) { return true, nil },
		inNamespace: func(func() error) error { return nil },
		fileSystem: func(string) (unix.Statfs_t, error) {
			return unix.Statfs_t{Type: unix.TMPFS_MAGIC, Bsize: 4096, Bavail: 1 << 20}, nil
		},
		memoryAvailable: func() (int64, error) { return 4 << 30, nil },
		traceScope:      func() string { return "1\n" },
		writeProtect:    func() error { return nil },
		softDirty:       func() error { return nil },
		state:           "/state",
	}
}

func machineChecks() []check {
	checks := append(append(privilegeChecks(), programChecks()...), trackingChecks()...)
	return append(append(checks, networkChecks()...), resourceChecks()...)
}

func find(t *testing.T, requirements []Requirement, name string) Requirement {
	t.Helper()
	for _, requirement := range requirements {
		if requirement.Name == name {
			return requirement
		}
	}
	t.Fatalf("no requirement %q", name)
	return Requirement{}
}

func TestAGoodMachineHasAll(t *testing.T) {
	for _, requirement := range look(t.Context(), goodMachine(), machineChecks()) {
		if requirement.Status != Found {
			t.Errorf("%s: got %s (%s), want found", requirement.Name, requirement.Status, requirement.Detail)
		}
	}
}

func TestChecks(t *testing.T) {
	failure := errors.New("no luck")
	for _, test := range []struct {
		requirement string
		change      func(*machine)
		status      Status
		version     string
		detail      string
	}{
		{"root", func(*machine) {}, Found, "", "with the capabilities that are needed"},
		{"root", func(m *machine) { m.user = func() int { return 1000 } }, Missing, "", "this is user 1000"},
		{
			"root", func(m *machine) {
				m.capabilities = func() (uint64, error) { return allCapabilities &^ (1<<21 | 1<<12), nil }
			},
			Missing, "", "without CAP_NET_ADMIN, CAP_SYS_ADMIN",
		},
		{"root", func(m *machine) { m.capabilities = func() (uint64, error) { return 0, failure } }, Unknown,
			"", "no luck"},
		{
			"CAP_SYS_RESOURCE",
			func(m *machine) {
				m.capabilities = func() (uint64, error) {
					return allCapabilities &^ (1 << 24),
						nil
				}
			},
			Missing, "", "",
		},
		{"CAP_SYS_RESOURCE", func(m *machine) {
			m.capabilities = func() (uint64, error) {
				return 0,
					failure
			}
		}, Unknown, "", "no luck"},
		{"criu", func(*machine) {}, Found, "4.2.1", "/opt/criu"},
		{"runc", func(*machine) {}, Found, "1.3.6", "/opt/runc"},
		{
			"criu", func(m *machine) {
				m.findTool = func(string, string) (string, error) {
					return "",
						errNotInstalled
				}
			},
			Missing, "", "not installed",
		},
		{
			"criu", func(m *machine) {
				m.output = func(context.Context, string, ...string) (string, error) { return "", failure }
			},
			Missing, "", "/opt/criu does not run: no luck",
		},
		{
			"criu", func(m *machine) {
				m.output = func(context.Context, string, ...string) (string, error) {
					return "", &patience.LateError{Who: "/opt/criu", Waited: 10 * time.Second, Still: true}
				}
			},
			Unknown, "", "/opt/criu did not answer within 10s and shows no sign of work",
		},
		{
			"runc", func(m *machine) {
				m.output = func(context.Context, string, ...string) (string, error) {
					return "crun version 1",
						nil
				}
			},
			Missing, "", "/opt/runc does not report its version as runc does",
		},
		{"loopback", func(m *machine) { m.loopbackUp = func() (bool, error) { return false, nil } }, Missing,
			"", "it is down"},
		{"loopback", func(m *machine) { m.loopbackUp = func() (bool, error) { return false, failure } },
			Unknown, "", "no luck"},
		{
			"VXLAN tunnels",
			func(m *machine) { m.inNamespace = func(func() error) error { return unix.EOPNOTSUPP } },
			Missing, "", unix.EOPNOTSUPP.Error(),
		},
		{
			"TUN devices",
			func(m *machine) { m.inNamespace = func(func() error) error { return unix.EPERM } },
			Unknown, "", unix.EPERM.Error(),
		},
		{
			"IPv4 forwarding",
			func(m *machine) { m.readFile = func(string) ([]byte, error) { return []byte("0\n"), nil } },
			Missing, "", "it is off",
		},
		{
			"IPv4 forwarding",
			func(m *machine) { m.readFile = func(string) ([]byte, error) { return nil, fs.ErrNotExist } },
			Unknown, "", fs.ErrNotExist.Error(),
		},
		{
			"/run in memory",
			func(m *machine) {
				m.fileSystem = func(string) (unix.Statfs_t,
					error) {
					return unix.Statfs_t{Type: unix.EXT4_SUPER_MAGIC}, nil
				}
			},
			Missing, "", "it is not a tmpfs",
		},
		{"finding written memory", func(*machine) {}, Found, "",
			"by asynchronous write-protection, the best way"},
		{
			"finding written memory", func(m *machine) { m.writeProtect = func() error { return failure } },
			Found, "", "by soft-dirty notes, the second best way: more is read in each round (no luck)",
		},
		{
			"finding written memory", func(m *machine) {
				m.writeProtect = func() error { return kernel.ErrUnsupported }
				m.softDirty = func() error { return kernel.ErrUnsupported }
			},
			Missing, "", "by comparing",
		},
		{
			"finding written memory", func(m *machine) {
				m.writeProtect = func() error { return failure }
				m.softDirty = func() error { return unix.EPERM }
			},
			Unknown, "", failure.Error() + "; " + unix.EPERM.Error(),
		},
		{
			"finding written memory", func(m *machine) { m.traceScope = func() string { return "3\n" } },
			Missing, "",
			"kernel.yama.ptrace_scope is 3: no process may be traced until the machine starts again",
		},
		{"memory", func(*machine) {}, Found, "", "4096 MiB available"},
		{
			"memory",
			func(m *machine) { m.memoryAvailable = func() (int64, error) { return 100 << 20, nil } },
			Missing, "", "100 MiB available, at least 256 MiB are asked for",
		},
		{
			"disk",
			func(m *machine) {
				m.fileSystem = func(string) (unix.Statfs_t,
					error) {
					return unix.Statfs_t{Bsize: 1 << 20, Bavail: 5}, nil
				}
			},
			Missing, "", "5 MiB free in /state, at least 1024 MiB are asked for",
		},
		{
			"disk", func(m *machine) {
				m.fileSystem = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, failure }
			},
			Unknown, "", "no luck",
		},
	} {
		t.Run(test.requirement+" "+test.detail, func(t *testing.T) {
			m := goodMachine()
			test.change(&m)
			got := find(t, look(t.Context(), m, machineChecks()), test.requirement)
			if got.Status != test.status || got.Version != test.version || got.Detail != test.detail {
				t.Errorf("got %s %q %q, want %s %q %q", got.Status, got.Version, got.Detail, test.status,
					test.version, test.detail)
			}
		})
	}
}

func TestEveryRequirementExplainsItself(t *testing.T) {
	names := map[string]bool{}
	for _, c := range allChecks() {
		if names[c.name] {
			t.Errorf("two requirements are called %q", c.name)
		}
		names[c.name] = true
		if c.lost == "" || c.advice.General == "" {
			t.Errorf("%s: does not say what is lost or how to get it", c.name)
		}
	}
	other := meaningOf("something new")
	for _, f := range kernel.Features() {
		if meaningOf(f.Name) == other {
			t.Errorf("kernel feature %q is not explained in meaningOf", f.Name)
		}
	}
}

type fakeFeature struct{ err error }

func (f fakeFeature) Probe() error { return f.err }

func TestProbed(t *testing.T) {
	for _, test := range []struct {
		err    error
		status Status
	}{
		{nil, Found}, {fmt.Errorf("x: %w", kernel.ErrUnsupported), Missing}, {unix.EPERM, Unknown},
	} {
		if got := probed(fakeFeature{test.err}); got.status != test.status {
			t.Errorf("probe says %v: got %s, want %s", test.err, got.status, test.status)
		}
	}
}

func TestNetworkDevicesAreReallyTried(t *testing.T) {
	requirements := look(t.Context(), thisMachine(t.TempDir()), networkChecks())
	for _, name := range []string{"loopback", "veth pairs", "VXLAN tunnels", "TUN devices"} {
		if r := find(t, requirements, name); r.Status != Found {
			t.Errorf("%s: %s (%s)", name, r.Status, r.Detail)
		}
	}
	refused := device("impossible", Required, "CONFIG_NO", "nothing", func() error {
		return addLink(&netlink.GenericLink{LinkAttrs: attributes(), LinkType: "no-such-kind"})
	})
	if got := refused.look(t.Context(), thisMachine("")); got.status != Missing {
		t.Errorf("a device that cannot be made: got %s, want missing", got.status)
	}
}

func TestExamine(t *testing.T) {
	program := buildProgram(t)
	for _, test := range []struct {
		name   string
		change func(*machine)
		works  bool
		trial  TrialResult
		reason string
	}{
		{"all is well", func(*machine) {}, true, Passed, ""},
		{
			"no criu", func(m *machine) {
				m.findTool = func(name, variable string) (string, error) {
					if name == "criu" {
						return "", errNotInstalled
					}
					return findTool(name, variable)
				}
			}, false, NotRun, "criu is missing: nothing can be checkpointed or restored",
		},
		{
			"no runc", func(m *machine) {
				m.findTool = func(name, variable string) (string, error) {
					if name == "runc" {
						return "", errNotInstalled
					}
					return findTool(name, variable)
				}
			}, false, NotRun, "runc is missing: containers cannot be run or restored",
		},
		{"not root", func(m *machine) { m.user = func() int { return 1 } }, false, NotRun,
			"root is missing: "},
		{
			"the trial passes, and something else is missing",
			func(m *machine) { m.inNamespace = func(func() error) error { return unix.ENODEV } },
			false, Passed, "veth pairs is missing: containers have no network",
		},
		{
			"only the trial fails", func(m *machine) {
				broken := script(t, `[ "$1" != --version ] || { echo Version: 9.9; exit; }; exit 1`)
				m.findTool = func(name, variable string) (string, error) {
					if name == "criu" {
						return broken, nil
					}
					return findTool(name, variable)
				}
			}, false, Failed, "the trial failed: checkpoint: ",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := thisMachine(t.TempDir())
			test.change(&m)
			report := examine(t.Context(), m, Options{Program: program, State: m.state})
			if report.Works != test.works || report.Trial.Result != test.trial ||
				!strings.HasPrefix(report.Reason(), test.reason) {
				t.Errorf("got works %t, trial %s, %q; want %t, %s, %q",
					report.Works, report.Trial.Result, report.Reason(), test.works, test.trial, test.reason)
			}
			if test.works != (report.Reason() == "") {
				t.Errorf("works %t, but the reason is %q", test.works, report.Reason())
			}
			expectSameInText(t, report)
		})
	}
}

// expectSameInText checks that the text for people contains everything in the JSON.
func expectSameInText(t *testing.T, report Report) {
	t.Helper()
	var text bytes.Buffer
	if err := report.Print(&text); err != nil {
		t.Fatal(err)
	}
	wanted := []string{report.Reason(), string(report.Trial.Result), report.Host.Kernel}
	for _, requirement := range report.Requirements {
		wanted = append(wanted, requirement.Name, requirement.Version, requirement.Detail)
		if requirement.Status != Found {
			wanted = append(wanted, requirement.Lost, requirement.Advice.General, requirement.Advice.Debian)
		}
	}
	for _, want := range wanted {
		if !strings.Contains(text.String(), want) {
			t.Errorf("not in the text: %q\n%s", want, text.String())
		}
	}
}

func TestReportAsJSON(t *testing.T) {
	report := Report{
		Host: Host{Name: "n", System: "Debian", Kernel: "6.12", Architecture: "x86_64"},
		Requirements: []Requirement{{Name: "criu", Level: Required, Status: Missing, Lost: "all",
			Advice: Advice{General: "get it"}}},
		Trial: notRun(errNotInstalled, Advice{Debian: "apt", General: "get it"}),
	}
	got, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"works":false,"host":{"name":"n","system":"Debian","kernel":"6.12","architecture":"x86_64"},` +
		`"requirements":[{"name":"criu","level":"required","status":"missing","lost":"all","advice":{"general":"get it"}}],` +
		`"trial":{"result":"not-run","seconds":0,"steps":[],"error":"not installed","advice":{"debian":"apt","general":"get it"}}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}

func TestAdvice(t *testing.T) {
	for _, test := range []struct {
		said string
		want string
	}{
		{"checkpoint: runc: criu failed: type DUMP errno 56", adviceCRIU.General},
		{"checkpoint: runc: Invalid manage cgroups mode", adviceRunc.General},
		{"start: runc: exec: permission denied", "noexec"},
		{"make a network namespace: operation not permitted", "all capabilities"},
		{"copy: no space left on device", "make room"},
		{"restore: Error (criu/net.c:1): Can't up the lo", "ip link set lo up"},
	} {
		trial := failedTrial(errors.New(test.said), "")
		if !strings.Contains(trial.Advice.General, test.want) {
			t.Errorf("%q: advice is %q, want %q in it", test.said, trial.Advice.General, test.want)
		}
	}
}

func TestFindTool(t *testing.T) {
	program := script(t, "exit 0")
	t.Run("named in the environment", func(t *testing.T) {
		t.Setenv("GODWIT_TOOL", program)
		if got, err := findTool("tool", "GODWIT_TOOL"); err != nil || got != program {
			t.Errorf("got %q, %v; want %q", got, err, program)
		}
	})
	t.Run("named in the environment and not there", func(t *testing.T) {
		t.Setenv("GODWIT_TOOL", "/nonexistent/tool")
		if got, err := findTool("sh", "GODWIT_TOOL"); err == nil ||
			!strings.Contains(err.Error(), "GODWIT_TOOL") {
			t.Errorf("got %q, %v; want an error that names the variable, and no other tool", got, err)
		}
	})
	t.Run("named in the environment and no program", func(t *testing.T) {
		t.Setenv("GODWIT_TOOL", t.TempDir())
		if got, err := findTool("sh", "GODWIT_TOOL"); err == nil {
			t.Errorf("got %q for a directory", got)
		}
	})
	t.Run("in PATH", func(t *testing.T) {
		t.Setenv("PATH", filepath.Dir(program))
		if got, err := findTool(filepath.Base(program), "GODWIT_TOOL"); err != nil || got != program {
			t.Errorf("got %q, %v; want %q", got, err, program)
		}
	})
	t.Run("nowhere", func(t *testing.T) {
		if _, err := findTool("no-such-tool", "GODWIT_TOOL"); !errors.Is(err, errNotInstalled) {
			t.Errorf("got %v, want %v", err, errNotInstalled)
		}
	})
}

func TestFileSystemOfWhatIsNotThereYet(t *testing.T) {
	here := t.TempDir()
	want, err := fileSystem(here)
	if err != nil {
		t.Fatal(err)
	}
	got, err := fileSystem(filepath.Join(here, "not", "yet"))
	if err != nil || got.Fsid != want.Fsid {
		t.Errorf("got %v, %v; want the file system of %s", got.Fsid, err, here)
	}
}
