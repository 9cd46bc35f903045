package results

// Sizes in bytes.
const (
	Kibi = 1 << 10
	Mebi = 1 << 20
	Gibi = 1 << 30
)
