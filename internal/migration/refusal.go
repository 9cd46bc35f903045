package migration

import "fmt"

// Refusal is the error of a step that found problems.
type Refusal struct{ Problems []Problem }

func (e *Refusal) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].What + ": " + e.Problems[0].Why
	}
	return fmt.Sprintf("refused for %d reasons; the first: %s: %s", len(e.Problems), e.Problems[0].What,
		e.Problems[0].Why)
}
