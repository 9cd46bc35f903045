package bench

import "io"

// WriteText prints a result for people: a table for each workload and link, and the requirements.
func WriteText(w io.Writer, r Result) {
	r.writeText(w, func() { writeRows(w, r) })
}

// writeRows prints the rows of a result as its suite prints them.
func writeRows(w io.Writer, r Result) {
	switch r.Suite {
	case suiteRounds, suiteNetwork, suiteIdle:
		r.writeMetrics(w)
	case suitePostCopy:
		r.writeFollowing(w)
	case suiteJourney:
		r.writeJourney(w)
	case suiteFiles:
		r.writeCopying(w)
	case suiteEngines:
		r.writeEngines(w)
	case suiteStudies:
		r.writeStudies(w)
	default:
		r.writeMoves(w)
	}
}
