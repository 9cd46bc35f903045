package files

// way is the path to the present frame of a manifest.
type way struct {
	path string
	ends []int // of the paths of all directories on it
}

func newWay() *way { return &way{} }

func (w *way) to(f *frame) string {
	w.ends = w.ends[:min(f.depth, len(w.ends))]
	w.path = w.path[:w.end()]
	if f.depth > 0 {
		w.path = joined(w.path, f.name)
	}
	w.ends = append(w.ends, len(w.path))
	return w.path
}

func (w *way) end() int {
	if len(w.ends) == 0 {
		return 0
	}
	return w.ends[len(w.ends)-1]
}

// joined is a path of two parts, the first of which may be the root's: "".
func joined(directory, name string) string {
	if directory == "" {
		return name
	}
	return directory + "/" + name
}
