package dump

// The sections that carry the execution state, over the first data connection.
const (
	KindKnown  = "known"  // content: pages to which pieces of the state may refer; see transfer/state.Known
	KindState  = "state"  // name: FILE@OFFSET
	KindRefers = "refers" // the same, content: see transfer/state.Known
	// The other way:
	KindHeard = "heard" // name: whether the pages that came ahead are known
)
