package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// Capabilities is what an engine can do beyond what every Engine does. An engine returns the same ones during
// its life. Callers look here and never at an engine's name or type.
type Capabilities struct {
	Facts

	// The parts that not every engine has; nil: the engine cannot.
	Images      Images           // its own images; nil: the agent's store has them
	Networks    NetworkLister    // routed networks
	Marker      Marker           // shows that a copy has moved
	Restarter   Restarter        // restarts containers by itself
	Protector   Protector        // protects frozen copies
	Resumer     ProcessResumer   // resumes processes without another program
	LeaveNoter  LeaveNoter       // its notes of departures can be read without another program
	Leaver      Leaver           // leaves something at the source
	LateStarter LateStarter      // arrivals may have to be started late
	Watcher     Watcher          // reports changes of containers
	Sweeper     Sweeper          // what failed moves leave has to be removed
	Releaser    ContainerRelease // holds something of containers that have ended
}

// Facts is the row of an engine in the table of engines: godwit ps --engines and docs/engines.md print it.
type Facts struct {
	Name      string    `json:"name"`
	Title     string    `json:"title"` // for people
	Anew      bool      `json:"mode_restart"`
	Addresses Addresses `json:"addresses"`
	ImagesAt  ImageHome `json:"images"`
	Volumes   bool      `json:"named_volumes"`   // they move
	Routed    bool      `json:"routed_networks"` // setup can make them
	Restarts  bool      `json:"restarts"`        // see Restarter
	Marks     bool      `json:"marks_moved"`     // see Marker
	Setup     bool      `json:"setup"`           // needs godwit engine setup before containers can come
}

// Addresses says where the addresses of an engine's containers are from.
type Addresses string

// Where addresses are from.
const (
	PoolAddresses  Addresses = "pool"   // Godwit's pool, which the agents route
	OwnedAddresses Addresses = "engine" // a network of the engine
)

// ImageHome says where the image of an engine's container is.
type ImageHome string

// Where images are.
const (
	AgentImages ImageHome = "godwit" // the agent's store
	OwnedImages ImageHome = "engine"
	NoImages    ImageHome = "none" // the whole root file system moves
)

// NetworkLister is an Engine that may have routed networks.
type NetworkLister interface {
	Name() string
	RoutedNetworks(ctx context.Context) ([]RoutedNetwork, error)
}

// Watcher is an Engine that reports changes of its containers.
type Watcher interface {
	Engine
	// Watch calls watching when the engine begins to report changes, and changed at each of them, until that
	// ends.
	Watch(ctx context.Context, watching, changed func()) error
}

// Sweeper is an Engine that removes what failed moves have left, and asks another program for the part
// that belongs to images.
type Sweeper interface {
	Sweep() error
	SweepImages(ctx context.Context, before time.Time) error
}

// ContainerRelease is an Engine that holds something of containers.
type ContainerRelease interface {
	// LetGo releases what the engine holds of containers that have ended.
	LetGo()
}

// Check reports facts that contradict the parts.
func (c Capabilities) Check() error {
	var wrong []error
	for _, one := range []struct {
		what       string
		said, have bool
	}{
		{"images", c.ImagesAt == OwnedImages, c.Images != nil},
		{"routed networks", c.Routed, c.Networks != nil},
		{"restarts", c.Restarts, c.Restarter != nil},
		{"marks", c.Marks, c.Marker != nil},
	} {
		if one.said != one.have {
			wrong = append(wrong, fmt.Errorf("engine %s: %s: the table says %t, and the engine has %t",
				c.Name, one.what, one.said, one.have))
		}
	}
	return errors.Join(wrong...)
}

// Columns are the headings of Row.
func Columns() []string {
	return []string{"engine", "modes", "addresses", "images", "named volumes", "routed networks", "restarts",
		"marks moved copies", "setup"}
}

// Row is the engine's row in the table.
func (f Facts) Row() []string {
	modes := "all but restart"
	if f.Anew {
		modes = "all"
	}
	return []string{f.Name, modes, string(f.Addresses), string(f.ImagesAt), yes(f.Volumes), yes(f.Routed),
		yes(f.Restarts), yes(f.Marks), yes(f.Setup)}
}

// Table formats rows for a terminal.
func Table(all []Facts) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.ToUpper(strings.Join(Columns(), "\t")))
	for _, one := range all {
		fmt.Fprintln(table, strings.Join(one.Row(), "\t"))
	}
	_ = table.Flush() // a Builder does not fail
	return text.String()
}

// MarkdownTable formats rows for documentation.
func MarkdownTable(all []Facts) string {
	columns := Columns()
	lines := []string{cells(columns), "|" + strings.Repeat("---|", len(columns))}
	for _, one := range all {
		lines = append(lines, cells(one.Row()))
	}
	return strings.Join(lines, "\n") + "\n"
}

func cells(row []string) string { return "| " + strings.Join(row, " | ") + " |" }

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "-"
}
