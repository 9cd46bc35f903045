package inventory

import "fmt"

// Told are the errors of looks that are repeated, by what was looked at: a lasting one is told once.
type Told map[string]string

// News notes how a look has ended, and reports whether it has failed otherwise than the one before.
func (t Told) News(what string, err error) bool {
	text := fmt.Sprint(err)
	is := err != nil && t[what] != text
	t[what] = text
	return is
}
