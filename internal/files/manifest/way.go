package manifest

// Way is the path to the present frame of a manifest.
type Way struct {
	path string
	ends []int // of the paths of all directories on it
}

// NewWay returns the path to no frame yet.
func NewWay() *Way { return &Way{} }

// To goes to a frame, and returns its path.
func (w *Way) To(f *Frame) string {
	w.ends = w.ends[:min(f.Depth, len(w.ends))]
	w.path = w.path[:w.end()]
	if f.Depth > 0 {
		w.path = Joined(w.path, f.Name)
	}
	w.ends = append(w.ends, len(w.path))
	return w.path
}

func (w *Way) end() int {
	if len(w.ends) == 0 {
		return 0
	}
	return w.ends[len(w.ends)-1]
}

// Joined is a path of two parts, the first of which may be the root's: "".
func Joined(directory, name string) string {
	if directory == "" {
		return name
	}
	return directory + "/" + name
}
