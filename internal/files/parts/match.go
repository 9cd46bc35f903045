package parts

import "sort"

// Plan says where the parts of an archive are.
type Plan struct {
	wanted []Part
	at     []place
	// Missing are the parts that no other archive has, and MissingBytes how large they are.
	Missing      []Run
	MissingBytes int64
}

// place is where a part is.
type place struct {
	other  int // -1: nowhere
	offset int64
}

// Match finds parts of an archive in others. Each of the others is to be read once, from its
// beginning on, so a part counts only if it lies behind those that are used of the same archive
// before.
func Match(wanted []Part, others [][]Part) Plan {
	plan := Plan{wanted: wanted, at: find(wanted, others)}
	for other := range others {
		plan.keepForward(other)
	}
	for i, at := range plan.at {
		if at.other >= 0 {
			continue
		}
		plan.MissingBytes += int64(wanted[i].Length)
		if n := len(plan.Missing); n > 0 && plan.Missing[n-1].First+plan.Missing[n-1].Count == uint32(i) {
			plan.Missing[n-1].Count++
		} else {
			plan.Missing = append(plan.Missing, Run{uint32(i), 1})
		}
	}
	return plan
}

// find looks each part up.
func find(wanted []Part, others [][]Part) []place {
	known := make(map[Part]place, len(wanted))
	for _, part := range wanted {
		known[part] = place{other: -1}
	}
	for other, list := range others {
		offset := int64(0)
		for _, part := range list {
			if at, use := known[part]; use && at.other < 0 {
				known[part] = place{other, offset}
			}
			offset += int64(part.Length)
		}
	}
	at := make([]place, len(wanted))
	for i, part := range wanted {
		at[i] = known[part]
	}
	return at
}

// keepForward keeps the most parts of one other archive whose offsets never fall: a longest
// non-decreasing subsequence, by patience sorting.
func (p *Plan) keepForward(other int) {
	var tops []int // of each length, the sequence that ends at the least offset: index of its last part
	before := make([]int, len(p.at))
	for i, at := range p.at {
		if at.other != other {
			continue
		}
		n := sort.Search(len(tops), func(n int) bool { return p.at[tops[n]].offset > at.offset })
		before[i] = -1
		if n > 0 {
			before[i] = tops[n-1]
		}
		if n == len(tops) {
			tops = append(tops, i)
		} else {
			tops[n] = i
		}
	}
	keep := -1
	if len(tops) > 0 {
		keep = tops[len(tops)-1]
	}
	for i := len(p.at) - 1; i >= 0; i-- {
		if i == keep {
			keep = before[i]
		} else if p.at[i].other == other {
			p.at[i].other = -1
		}
	}
}

// Uses reports whether anything is taken from one of the others.
func (p *Plan) Uses(other int) bool {
	for _, at := range p.at {
		if at.other == other {
			return true
		}
	}
	return false
}
