package doctor

import (
	"strings"
)

// adviceCRIU says how to get a working CRIU, whatever is wrong with the current one.
var adviceCRIU = Advice{
	Debian: "run godwit setup criu (it installs a newer CRIU beside the system's); " +
		"on Ubuntu: add-apt-repository ppa:criu/ppa && apt-get install criu",
	General: "install CRIU 4.2 or later, or build it from source, and put it into " + prefixBin +
		" or name it in GODWIT_CRIU",
}

// adviceRunc says how to get a runc.
var adviceRunc = Advice{
	Debian: "run godwit setup criu (it installs a newer runc beside the system's); on Ubuntu: apt-get " +
		"install runc",
	General: "install runc 1.2 or later, and put it into PATH or " + prefixBin +
		" or name it in GODWIT_RUNC",
}

// adviceStatic is for people who build Godwit in their own way.
var adviceStatic = Advice{General: "build Godwit with make build, or with CGO_ENABLED=0"}

// symptoms maps messages of CRIU, runc or the kernel to advice. The first match counts.
var symptoms = []struct {
	said   string
	advice Advice
}{
	{errDynamic.Error(), adviceStatic},
	{"permission denied", Advice{General: "run as root; if the state directory is mounted noexec, choose " +
		"another by --state"}},
	{"operation not permitted", Advice{
		General: "run as root with all capabilities; in a container or a restricted virtual machine ask " +
			"whoever runs it",
	}},
	{"no space left", Advice{General: "make room in the state directory, or choose another by --state"}},
	{"start: runc", adviceRunc},
	// runc 1.1 cannot leave cgroups to others; --manage-cgroups-mode=ignore came with 1.2.
	{"manage cgroups mode", adviceRunc},
	{"Can't up the lo", Advice{General: "set up the loopback interface: ip link set lo up"}},
}

// failedTrial describes a failed trial, with CRIU's log, and advice.
func failedTrial(err error, criuSaid string) Trial {
	result := Trial{Result: Failed, Steps: []Step{}, Error: err.Error()}
	if criuSaid != "" {
		result.Error += "; CRIU: " + criuSaid
	}
	advice := adviceCRIU
	for _, symptom := range symptoms {
		if strings.Contains(strings.ToLower(result.Error), strings.ToLower(symptom.said)) {
			advice = symptom.advice
			break
		}
	}
	result.Advice = &advice
	return result
}

func notRun(err error, advice Advice) Trial {
	return Trial{Result: NotRun, Steps: []Step{}, Error: err.Error(), Advice: &advice}
}
