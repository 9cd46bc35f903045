package migration

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// StageState is the progress of a copy of a container's memory that was made ahead of a migration.
type StageState string

// The states, in their order.
const (
	StageConnecting StageState = "connecting"
	StageLayers     StageState = "layers" // image layers are being sent
	StageMemory     StageState = "memory" // the first round is being sent
	StageReady      StageState = "ready"  // a migration can start from the copy
	// an idle copy: a migration refers to it by digests, and sends pages that differ
	StageIdle    StageState = "parked"
	StageWaiting StageState = "waiting" // nothing is there yet
	StageEnded   StageState = "ended"
)

// StageKind is the kind of a copy.
type StageKind string

// The kinds.
const (
	StagedCopy StageKind = "base" // of a container that runs, at a node to which it may move
	// of the layers of a container's image only, at a node to which the container may move
	LayersCopy StageKind = "layers"
	Residual   StageKind = "footprint" // of a container that has left, at the node where it was
	// of the files of a container, from a migration that failed; the next migration continues from it
	BrokenCopy StageKind = "broken"
)

// Stage is a node's description of a copy of a container's data.
type Stage struct {
	ID          string     `json:"stage"`
	Kind        StageKind  `json:"kind"`
	Container   string     `json:"container"`
	ContainerID string     `json:"container_id"`
	Source      string     `json:"source"` // where the container runs
	Target      string     `json:"target"` // where the copy is
	State       StageState `json:"state"`
	Error       string     `json:"error,omitempty"` // why the copy has ended
	Started     time.Time  `json:"started"`
	// Fresh is when the last complete round began: the copy is as the memory was then, or newer.
	Fresh      time.Time `json:"fresh,omitzero"`
	FreshUntil time.Time `json:"fresh_until,omitzero"` // it is kept up to date until then
	Until      time.Time `json:"until,omitzero"`       // it is removed then
	Rounds     int       `json:"rounds"`
	// MemoryBytes is the memory that was sent, as pages; at the target, the memory that the copy takes
	// there.
	MemoryBytes int64 `json:"memory_bytes"`
	DiskBytes   int64 `json:"disk_bytes"` // disk space that the copy takes there
	SentBytes   int64 `json:"sent_bytes"` // on the wire, with layers
	RoundBytes  int64 `json:"round_bytes"`
	// ExpectedBytes is an upper limit of the bytes that the first round sends, before compression.
	ExpectedBytes          int64      `json:"expected_bytes"`
	RoundSeconds           float64    `json:"round_seconds"`                  // duration of the last round
	DirtyingRate           float64    `json:"dirtying_rate_bytes_per_second"` // as the last round saw it
	BandwidthBitsPerSecond float64    `json:"bandwidth_bits_per_second"`
	Placement              *Placement `json:"ahead,omitempty"` // nil: a user named only the node
}

// The reasons for placing a copy.
const (
	PlacementPath    = "path"
	PlacementNearest = "nearest"
	PlacementSpare   = "spare" // the node was near, or on the path, and had room
)

// Placement describes a copy that is made because the container may come: on its user's path, or on a near
// node.
type Placement struct {
	Why      string    `json:"why"` // PlacementPath, PlacementNearest or PlacementSpare
	Deadline time.Time `json:"deadline,omitzero"`
	Begin    time.Time `json:"begin,omitzero"` // when the copy will be begun, or brought up to date
	// the node at which the container will be then; empty: where it is now
	From string `json:"from,omitempty"`
	// Outlook says whether the deadline will be met: in time, may be late, late, cannot be reached.
	Outlook          string  `json:"outlook,omitempty"`
	LateSeconds      float64 `json:"late_seconds,omitempty"`
	NeedSeconds      float64 `json:"need_seconds"`       // until the copy is up to date, as predicted
	NeedWorstSeconds float64 `json:"need_worst_seconds"` // the same, at worst
	NeedBytes        float64 `json:"need_bytes"`
	Failures         int     `json:"failures,omitempty"`
}

// StageSettings are a user's choices for a stage. Zero values are defaults.
type StageSettings struct {
	// Keep is the minimum time for which the copy stays.
	Keep time.Duration
	// KeepFresh is how long the copy is kept up to date; 0: not at all. The copy stays at least as long.
	KeepFresh time.Duration
	// BandwidthLimit is the copy's limit on the link, in bits per second; 0: no limit.
	BandwidthLimit float64
}

// Bounds and defaults of a stage's settings.
const (
	DefaultKeep = time.Hour
	MaxKeep     = MaxTimeout
)

// Complete checks a user's choices, and fills in the defaults.
func (s StageSettings) Complete() (StageSettings, error) {
	s.Keep = cmp.Or(s.Keep, DefaultKeep)
	if err := CheckKeep(s.Keep); err != nil {
		return s, fmt.Errorf("to keep a copy for %w", err)
	}
	if err := CheckKeep(s.KeepFresh); err != nil {
		return s, fmt.Errorf("to keep a copy fresh for %w", err)
	}
	s.Keep = max(s.Keep, s.KeepFresh)
	return s, CheckBandwidthLimit(s.BandwidthLimit)
}

// CheckKeep refuses a time for which no copy can be kept. Zero is none.
func CheckKeep(d time.Duration) error {
	if d != 0 && (d < time.Second || d > MaxKeep) {
		return fmt.Errorf("%s: must be between %s and %s", d, time.Second, MaxKeep)
	}
	return nil
}

// Called reports whether a reference means a container: by name, id, or a prefix of the id.
func Called(reference, id, name string) bool {
	return reference == name || reference != "" && strings.HasPrefix(id, reference)
}
