package doctor

// Report is doctor's result for this machine.
type Report struct {
	Works        bool          `json:"works"` // containers can be moved from and to this machine
	Host         Host          `json:"host"`
	Requirements []Requirement `json:"requirements"`
	Trial        Trial         `json:"trial"`
}

// Host identifies the machine.
type Host struct {
	Name         string `json:"name"`
	System       string `json:"system"`
	Kernel       string `json:"kernel"`
	Architecture string `json:"architecture"`
}

// Requirement is one thing that Godwit needs or can use, and its status.
type Requirement struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Status  Status `json:"status"`
	Version string `json:"version,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Lost    string `json:"lost"` // what does not work without it
	Advice  Advice `json:"advice"`
}

// Level says how much a requirement matters.
type Level string

// Levels of requirements.
const (
	Required    Level = "required"    // nothing can be moved without it
	Recommended Level = "recommended" // a feature that people want does not work without it
	Optional    Level = "optional"
)

// Status says whether a requirement is there.
type Status string

// Statuses of requirements.
const (
	Found   Status = "found"
	Missing Status = "missing"
	Unknown Status = "unknown" // could not be checked; Detail says why
)

// Advice says how to meet a requirement.
type Advice struct {
	Debian  string `json:"debian,omitempty"` // on Debian and Ubuntu
	General string `json:"general"`
}

// Reason returns why containers cannot be moved, in one line; empty if they can.
func (r Report) Reason() string {
	if r.Works {
		return ""
	}
	for _, requirement := range r.Requirements {
		if requirement.Level == Required && requirement.Status == Missing {
			return requirement.Name + " is missing: " + requirement.Lost
		}
	}
	if r.Trial.Result == NotRun {
		return "the trial could not be made: " + r.Trial.Error
	}
	return "the trial failed: " + r.Trial.Error
}
