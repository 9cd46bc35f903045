package staging

// The sections of a stage's data connection beside those of pages (package precopy). Each is answered by one
// of the same kind and name, but for the last.
const (
	kindOffer  = "offer"  // content: api.Envelope
	kindTaken  = "taken"  // name: the migration that goes on with the copy
	kindStaged = "staged" // all layers of the image are there
)

// maxOffer bounds an offer and its answer.
const maxOffer = 1 << 20
