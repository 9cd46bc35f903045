package doctor

import (
	"strings"
)

// adviceCRIU is how to get a CRIU that works, whatever is wrong with the one that is there.
var adviceCRIU = Advice{
	Debian: "run godwit setup criu (it installs a newer CRIU beside the system's); " +
		"on Ubuntu: add-apt-repository ppa:criu/ppa && apt-get install criu",
	General: "install CRIU 4.2 or later, or build it from source, and put it into " + prefixBin +
		" or name it in GODWIT_CRIU",
}

// adviceRunc is how to get a runc.
var adviceRunc = Advice{
	Debian: "run godwit setup criu (it installs a newer runc beside the system's); on Ubuntu: apt-get " +
		"install runc",
	General: "install runc 1.2 or later, and put it into PATH or " + prefixBin +
		" or name it in GODWIT_RUNC",
}

// adviceStatic is for those who build Godwit in a way of their own.
var adviceStatic = Advice{General: "build Godwit with make build, or with CGO_ENABLED=0"}

// symptoms maps what CRIU, runc or the kernel say to what helps. The first that fits counts.
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

// failedTrial describes a trial that did not pass, with what CRIU had logged, and what may help.
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
