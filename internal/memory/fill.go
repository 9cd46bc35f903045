package memory

import "time"

// FillState is the state of a container's memory that is filled while the container runs.
type FillState string

// The states in a report.
const (
	FillNone  FillState = "none"    // it was never filled like this, or nothing was restored
	Filling   FillState = "filling" // it is incomplete, or about to be restored
	Filled    FillState = "filled"  // it is complete
	FillEnded FillState = "ended"   // all processes ended before it was complete
	FillLost  FillState = "lost"    // it could not be completed: the container was killed
)

// FillReport describes the filling of a container's memory.
type FillReport struct {
	State FillState `json:"state"`
	Error string    `json:"error,omitempty"` // of FillLost

	Pages       int64     `json:"pages"`      // to be filled at the beginning
	LeftPages   int64     `json:"left_pages"` // still missing, in all processes
	RemotePages int64     `json:"late_pages"` // of Pages, those that stayed at the source
	RemoteLeft  int64     `json:"late_left"`  // of these, those that have not come yet
	LostPages   int64     `json:"lost_pages"` // of these, those given up: accesses to them fail
	Started     time.Time `json:"started"`    // the image was handed over
	// the memory of all processes was registered; they run immediately after that
	Resumed   time.Time `json:"resumed"`
	Completed time.Time `json:"completed"` // nothing was missing any more

	FillWaits
	FillChanges

	PID        int    `json:"pid"`         // of the pager
	StartTicks uint64 `json:"start_ticks"` // identifies the process together with its PID
}

// FillWaits is what processes have waited for.
type FillWaits struct {
	FaultedPages int64 `json:"faulted_pages"` // for which a process waited
	// of these, those that were never sent: they are zero
	ZeroPages int64 `json:"zero_pages"`
	// from when the pager knew until the page was there
	FaultMedianSeconds  float64 `json:"fault_median_seconds"`
	FaultP99Seconds     float64 `json:"fault_p99_seconds"`     // with a precision of 7 %
	FaultMaximumSeconds float64 `json:"fault_maximum_seconds"` // of all
	// of FaultedPages, those that were still at the source
	FetchedPages        int64   `json:"fetched_pages"`
	FetchMedianSeconds  float64 `json:"fetch_median_seconds"` // of these alone, like the three above
	FetchP99Seconds     float64 `json:"fetch_p99_seconds"`
	FetchMaximumSeconds float64 `json:"fetch_maximum_seconds"`
	WaitedSeconds       float64 `json:"waited_seconds"`  // total time for which threads waited for pages
	WaitingSeconds      float64 `json:"waiting_seconds"` // time in which at least one did
	FillSeconds         float64 `json:"fill_seconds"`    // from Resumed to Completed
}

// FillChanges is what processes have done to their mappings meanwhile.
type FillChanges struct {
	Forks     int64 `json:"forks"`      // children made meanwhile
	Remaps    int64 `json:"remaps"`     // mappings moved meanwhile
	Removes   int64 `json:"removes"`    // pages given back meanwhile: times
	Unmaps    int64 `json:"unmaps"`     // mappings removed meanwhile
	Retries   int64 `json:"retries"`    // copies that had to wait for one of these
	GonePages int64 `json:"gone_pages"` // no longer mapped by any process
}
