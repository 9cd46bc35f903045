package bench

import (
	"io"

	"github.com/godwit/godwit/internal/bench/engines"
	"github.com/godwit/godwit/internal/bench/files"
	"github.com/godwit/godwit/internal/bench/idle"
	"github.com/godwit/godwit/internal/bench/journey"
	"github.com/godwit/godwit/internal/bench/network"
	"github.com/godwit/godwit/internal/bench/postcopy"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/rounds"
	"github.com/godwit/godwit/internal/bench/studies"
	"github.com/godwit/godwit/internal/bench/switchover"
)

// WriteText prints a result for people: a table for each workload and link, and the requirements.
func WriteText(w io.Writer, r results.Result) {
	r.WriteText(w, func() { writeRows(w, r) })
}

// writeRows prints the rows of a result as its suite prints them.
func writeRows(w io.Writer, r results.Result) {
	switch r.Suite {
	case rounds.Name, network.Name, idle.Name:
		r.WriteMetrics(w)
	case postcopy.Name:
		postcopy.WriteRows(r, w)
	case journey.Name:
		journey.WriteRows(r, w)
	case files.Name:
		files.WriteRows(r, w)
	case engines.Name:
		engines.WriteRows(r, w)
	case studies.Name:
		studies.WriteRows(r, w)
	default:
		switchover.WriteRows(r, w)
	}
}
