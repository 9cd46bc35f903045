package results

// Metrics of what is sent. Sent bytes are counted on the link, in both directions, whoever sends them;
// but for parts of Godwit they are the content of files according to its report.
const (
	Link   = "link_bytes"   // in total
	Layers = "layers_bytes" // of image layers
)

// Metrics of a round of a pre-copy.
const (
	Round = "round_seconds" // everything together
)

// Metrics of memory that follows.
const (
	Connect = "connect_seconds"          // CRIU's daemon, until a restore can begin
	Images  = "images_bytes"             // sent by CRIU in the freeze
	Push    = "drain_seconds"            // from the resume until all memory is there
	Goodput = "goodput_bytes_per_second" // of the memory that came in that time
	Came    = "came_bytes"               // if not all of it came before the wait was given up
	Late    = "late_bytes"               // of memory that stayed at the source
	Faulted = "faulted_bytes"            // sent because a thread waited for them
	Pushed  = "pushed_bytes"             // sent because they were missing
	Urgent  = "urgent_pages"             // pages of late_bytes sent for a waiting thread
	// Measurements of Godwit's own pager: of all pages, the program's stacks and tables among them.
	Served        = "served_faults"
	ServedMedian  = "served_median_seconds"
	ServedP99     = "served_p99_seconds"
	ServedLongest = "served_longest_seconds"
	WaitingShare  = "waiting_ratio" // share of the post-copy push's time in which a thread waited
	WaitedInAll   = "waited_seconds"
)

// Metrics of several ways.
const (
	Downtime     = "downtime_seconds" // the container does not run
	Checkpoint   = "checkpoint_seconds"
	Copy         = "copy_seconds"
	Restore      = "restore_seconds"
	Gap          = "client_gap_seconds" // longest time between two answers
	Beyond       = "client_gap_beyond_downtime_seconds"
	Handoff      = "handoff_seconds"
	Total        = "total_seconds"
	Sent         = "sent_bytes"         // in total
	Frozen       = "sent_frozen_bytes"  // of these, memory in the freeze
	Uncompressed = "uncompressed_bytes" // sent bytes without compression
	// size of that memory and execution state, in whole pages
	Raw    = "raw_bytes"
	Rounds = "rounds" // before the freeze
	// memory of the container's processes before the first move, shared pages once
	Memory = "source_memory_bytes"
	Growth = "target_memory_ratio" // the same at the target, when everything is there
	Phase  = "phase_%s_seconds"    // a part of the downtime
)

// Metrics of a freeze.
const (
	FreezeBytes = "freeze_bytes" // memory and files sent in the freeze
)
