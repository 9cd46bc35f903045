package migration

// Plan answers whether a migration would work, and what it would move.
type Plan struct {
	Container   string    `json:"container"`
	Source      string    `json:"source"`
	Target      string    `json:"target"`
	Mode        Mode      `json:"mode"`
	Possible    bool      `json:"possible"`
	Problems    []Problem `json:"problems"`
	Warnings    []string  `json:"warnings"`
	MemoryBytes int64     `json:"memory_bytes"` // resident, and before compression: more than is sent
	FilesBytes  int64     `json:"files_bytes"`
	// SpillBytes is the disk space that remote pages may take at the source; 0: spilling was not requested.
	SpillBytes    int64    `json:"spill_bytes,omitempty"`
	MissingLayers []string `json:"missing_layers"` // layers that the target lacks
	// Volumes are the container's volumes, and how the migration would treat them.
	Volumes []VolumeMoved `json:"volumes,omitempty"`
}
