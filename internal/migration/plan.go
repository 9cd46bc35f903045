package migration

// Plan is the answer to: would it work, and what would move.
type Plan struct {
	Container   string    `json:"container"`
	Source      string    `json:"source"`
	Target      string    `json:"target"`
	Mode        Mode      `json:"mode"`
	Possible    bool      `json:"possible"`
	Problems    []Problem `json:"problems"`
	Warnings    []string  `json:"warnings"`
	MemoryBytes int64     `json:"memory_bytes"` // resident: more than travels, which is compressed
	FilesBytes  int64     `json:"files_bytes"`
	// SpillBytes is what the pages that stay at the source may take on its disk; 0: nobody asked for that.
	SpillBytes    int64    `json:"spill_bytes,omitempty"`
	MissingLayers []string `json:"missing_layers"` // that the target has not
	// Volumes are the container's, and what would become of them.
	Volumes []VolumeMoved `json:"volumes,omitempty"`
}
